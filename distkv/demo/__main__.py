"""`python -m distkv.demo`: the same as `distkv demo`."""

from __future__ import annotations

import sys

from distkv.cli.demo import command
from distkv.cli.failures import run

sys.exit(run(command))
