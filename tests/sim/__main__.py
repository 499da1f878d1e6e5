"""Live the history of one seed again, or of many: `python -m tests.sim SEED [SEED ...] [--shrink]`."""

from __future__ import annotations

import argparse
import traceback
from typing import get_args

from distkv.types import PolicyName
from tests.sim.history import actions_of, live, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", metavar="SEED")
    parser.add_argument("--shrink", action="store_true", help="find fewer actions that fail alike")
    parser.add_argument("--policy", choices=get_args(PolicyName), default="contract", help="of the gManagers")
    options = parser.parse_args()
    failed = []
    for seed in options.seeds:
        actions = shrunk(seed, options.policy) if options.shrink else actions_of(seed, options.policy)
        if options.shrink and not actions:
            continue
        print(f"history {seed}:", *actions, sep="\n  ")
        try:
            live(seed, actions, options.policy)
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    print(f"{len(failed)} of {len(options.seeds)} histories failed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
