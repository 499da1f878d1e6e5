"""The figures of simulations on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from distkv.bench.simulation.figures import Figures
from distkv.bench.simulation.needed import Size


def table(played: Sequence[tuple[Size, Figures]]) -> Table:
    """A line for each; sizes are columns where there are several."""
    sizes = {size for size, _ in played}
    shown = {
        "instances": len({size.instances for size in sizes}) > 1,
        "KV tokens": len({size.kv_tokens for size in sizes}) > 1,
    }
    found = Table(box=None)
    for head in (
        "policy", *(head for head, is_shown in shown.items() if is_shown), "rate x", "completed", "refused",
        "tokens/s", "goodput/s", "TTFT p50", "p99", "TPOT p99", "imbalance P95", "remote",
    ):  # fmt: skip
        found.add_column(head, justify="left" if head == "policy" else "right")
    for size, row in played:
        of_size = zip((size.instances, size.kv_tokens), shown.values(), strict=True)
        found.add_row(
            row.policy,
            *(f"{count:,}" for count, is_shown in of_size if is_shown),
            f"{row.rate_scale:g}",
            f"{row.completed:,}",
            f"{row.refused:,}",
            f"{row.tokens_per_s:,.1f}",
            f"{row.goodput_rps:.3g}",
            _seconds(row.ttft_p50_s),
            _seconds(row.ttft_p99_s),
            _seconds(row.tpot_p99_s),
            f"{row.imbalance_p95:.0%}",
            f"{row.remote_share:.1%}",
        )
    return found


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
