"""`python -m distkv.demo.train DIRECTORY`: train the demo model."""

from __future__ import annotations

from distkv.demo.train.loop import main

main()
