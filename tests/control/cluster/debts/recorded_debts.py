"""Who owed whom how much, as the gManager of a simulated cluster saw it: six instances of 40 rBlocks, 40 requests of 20
to 260 tokens in 6 s, policy contract without DGFM. Of 78 states in three runs, those in which debts went round."""

from __future__ import annotations

_RECORDED = """
12:39 13:23 15:13 25:13 45:4 50:10 51:22
12:39 13:23 15:13 25:13 30:25 45:4 50:10 51:22
01:7 31:9 34:10 40:9 41:11 43:34 50:22 53:3
01:7 02:39 34:10 40:9 41:15 43:34 50:22
01:7 02:39 14:19 40:9 41:11 43:34 50:22
03:39 04:8 31:2 34:27 40:32 41:25 45:12 54:2
03:39 04:8 31:2 34:27 40:32 41:34 45:12 54:2
03:39 31:2 34:27 40:32 41:25 45:12 54:2
12:1 13:2 14:9 30:11 31:37 34:30 35:39
12:1 13:5 14:9 30:11 31:37 34:30 35:39
12:1 13:6 14:9 31:37 32:4 34:12 35:39
12:1 13:10 14:9 31:37 34:12 35:39
12:1 13:11 14:9 31:37 34:12 35:39
12:1 13:12 14:10 31:37 34:12 35:39
10:2 13:14 31:37 34:12 35:39
13:17 31:37 34:12 35:39
02:35 13:17 31:37 34:12 35:39
12:19 21:11 32:1 34:39 50:39 52:11
"""


def recorded() -> list[dict[tuple[str, str], int]]:
    """(debtor, creditor) -> rBlocks, of each state."""
    graphs = []
    for line in _RECORDED.split("\n")[1:-1]:
        debts = (one.split(":") for one in line.split())
        graphs.append({(f"i{pair[0]}", f"i{pair[1]}"): int(num_blocks) for pair, num_blocks in debts})
    return graphs
