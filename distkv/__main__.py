"""`python -m distkv` is `distkv`."""

from __future__ import annotations

from distkv.cli.main import main

if __name__ == "__main__":
    main()
