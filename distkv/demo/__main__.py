"""`python -m distkv.demo`: the same as `distkv demo`."""

from __future__ import annotations

import sys

from distkv.cli.commands.demo import command
from distkv.cli.exit_codes import run

sys.exit(run(command))
