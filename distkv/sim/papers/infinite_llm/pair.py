"""001 Fig. 7 (§5.2): what a debtor and its creditor generate, by rBlocks that were moved; predicted and simulated."""

from __future__ import annotations

import statistics
from functools import partial

import msgspec
from msgspec.structs import replace

from distkv.control.performance.model import Load, PerformanceModel
from distkv.control.performance.pair import pair_rates
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.infinite_llm.engines import ClosedLoop, Decodes
from distkv.sim.papers.sensitivity import profile_range
from distkv.sim.profiles.built_in import built_in, kv_tokens
from distkv.wire.messages.profile import Profile

NAME = "a100-llama2-7b"
LONG_TOKENS, SHORT_TOKENS = 100_000, 500
CREDITOR_SHARES = (0.5, 0.25)
"""Of the creditor's pool that its own requests have in the beginning; curves are of the first."""
THEIR_GAIN = 8800 / 6500
GAIN_NOTE = (
    "The gain depends on what the creditor generates besides, which is not said; theirs lies between these two rows. "
    "At a full pool here more than three quarters of a step are attention, which gains nothing by batch."
)


class Point(msgspec.Struct, frozen=True):
    """Tokens each second of both with so many rBlocks moved."""

    moved: int
    debtor: float
    creditor: float

    @property
    def total(self) -> float:
        return self.debtor + self.creditor


class Pair(msgspec.Struct, frozen=True):
    """Two instances. blocks: of each pool. creditor_share: of its own requests, in the creditor's."""

    profile: Profile
    blocks: int
    creditor_share: float = CREDITOR_SHARES[0]

    @property
    def long_blocks(self) -> int:
        return LONG_TOKENS // self.profile.block_tokens

    @property
    def short_blocks(self) -> int:
        return -(-SHORT_TOKENS // self.profile.block_tokens)

    def debtor_batch(self, moved: int) -> int:
        """Short requests for which the long one leaves room."""
        return (self.blocks - self.long_blocks + moved) // self.short_blocks

    def creditor_batch(self, moved: int) -> int:
        """As many as there were, while there is room for them."""
        before = int(self.creditor_share * self.blocks) // self.short_blocks
        return min(before, (self.blocks - moved) // self.short_blocks)

    def predicted(self, moved: int) -> Point:
        """By the performance model (eq. 5 to 7)."""
        model, batch = PerformanceModel(self.profile), self.debtor_batch(moved)
        debt = Load(
            batch=1 + batch,
            context_tokens=LONG_TOKENS + batch * SHORT_TOKENS,
            remote_tokens=moved * self.profile.block_tokens,
        )
        own = Load(batch=self.creditor_batch(moved), context_tokens=self.creditor_batch(moved) * SHORT_TOKENS)
        return Point(moved, *pair_rates((model, debt), (model, own)))

    def simulated(self, moved: int, for_s: float) -> Point:
        """By engines that do it."""
        batch = [
            Decodes(1, LONG_TOKENS, lent=((1, moved),) if moved else ()),
            Decodes(self.debtor_batch(moved), SHORT_TOKENS),
        ]
        own = [Decodes(self.creditor_batch(moved), SHORT_TOKENS)]
        return Point(moved, *ClosedLoop(self.profile, ("host", "host")).tokens_per_s([batch, own], for_s))


def figure_7(effort: Effort, say: Say) -> Figure:
    """Debtor, creditor and both, over what was moved."""
    pair = Pair(built_in(NAME), kv_tokens(NAME) // built_in(NAME).block_tokens)
    for_s = effort.pick(1.0, 10.0)
    moves = _moves(pair, effort.pick(4, 24))
    simulated = list[Point]()
    for index, moved in enumerate(moves):
        say(f"{moved} rBlocks moved", index / len(moves))
        simulated.append(pair.simulated(moved, for_s))
    predicted = [pair.predicted(moved) for moved in moves]
    panels = tuple(
        Panel(
            title=title,
            series=(
                Series.of("simulated", [(one.moved, getattr(one, title)) for one in simulated]),
                Series.of("performance model", [(one.moved, getattr(one, title)) for one in predicted]),
            ),
        )
        for title in ("debtor", "creditor", "total")
    )
    best = max(one.total for one in simulated)
    apart = [abs(model.total / engine.total - 1) for model, engine in zip(predicted, simulated, strict=True)]
    ratios = (
        *(_gain_ratio(replace(pair, creditor_share=share), moves, for_s) for share in CREDITOR_SHARES),
        Ratio(
            what="tokens/s of both with all of the long request moved, times those at best",
            theirs="sharply declines",
            ours=rounded(simulated[-1].total / best),
        ),
        Ratio(
            what="predicted tokens/s of both, mean difference from simulated, %",
            theirs="consistent",
            ours=rounded(100 * statistics.fmean(apart)),
        ),
    )
    return Figure(
        name="001-7",
        title="A debtor with one long request and a creditor, LLaMA2-7B, two A100 of one host",
        x_label=f"rBlocks of {pair.profile.block_tokens} tokens that were moved",
        y_label="tokens/s",
        panels=panels,
        ratios=ratios,
        notes=(
            f"The long request has {LONG_TOKENS:,} tokens: the 1,000K of the paper's caption take 524 GB of keys and "
            "values, which two A100 do not have. Others have 500, as there; the debtor begins as many of them as its "
            "pool has room for.",
            f"How full the creditor was is not said: its requests have {CREDITOR_SHARES[0]:.0%} of its pool here, "
            "until what is lent leaves less. How many tokens a block has is not said either.",
        ),
    )


def _moves(pair: Pair, count: int) -> list[int]:
    """From nothing to the long request's last full rBlock, at equal distances."""
    return [round(index * pair.long_blocks / count) for index in range(count + 1)]


def _gain_ratio(pair: Pair, moves: list[int], for_s: float) -> Ratio:
    gain = partial(_gain, pair=pair, moves=moves, for_s=for_s)
    found = Ratio(
        what="tokens/s of both at best, times those with nothing moved; "
        f"the creditor's requests have {pair.creditor_share:.0%} of its pool",
        theirs=(THEIR_GAIN, THEIR_GAIN),
        ours=rounded(gain(pair.profile)),
        ours_range=profile_range(gain, pair.profile),
    )
    return found.explained(GAIN_NOTE)


def _gain(profile: Profile, *, pair: Pair, moves: list[int], for_s: float) -> float:
    """The best, times what there is before anything moves."""
    other = replace(pair, profile=profile)
    return max(other.simulated(moved, for_s).total for moved in moves) / other.simulated(0, for_s).total
