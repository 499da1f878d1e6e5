"""001 Fig. 12 (§7.4): what an instance generates while keys and values move away from it."""

from __future__ import annotations

from functools import partial

from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.infinite_llm.engines import ClosedLoop, Decodes, Moves
from distkv.sim.papers.sensitivity import profile_range
from distkv.sim.profiles.built_in import built_in, kv_tokens
from distkv.wire.messages.profile import Profile

NAME = "a100-llama2-7b"
SHORT_TOKENS = 500
MOVED_TOKENS = (0, 16, 32, 64, 128, 256)
"""With each decode step."""
REMOTE_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
NOTE = (
    "Blocks are read by their destination beside the steps here, and a step waits for none: over NVLink 32 tokens take "
    "73 us of a step of 35 ms; over Ethernet they lag behind, and queries that share the link still come back within "
    "the attention here. Theirs seems to end a step no earlier than its transfers."
)
LINKS = {"NVLink": ("host", "host"), "Ethernet, 125 MB/s": ("host", "other host")}


def figure_12(effort: Effort, say: Say) -> Figure:
    """By tokens that move with each step, and by the share of its keys that lies at a creditor."""
    profile, tokens = built_in(NAME), kv_tokens(NAME)
    for_s = effort.pick(1.0, 20.0)
    moving, sharing = list[Series](), list[Series]()
    ratios = list[Ratio]()
    for index, (link, hosts) in enumerate(LINKS.items()):
        say(f"moving over {link}", index / len(LINKS))
        alone = _tokens_per_s(profile, tokens=tokens, hosts=hosts, moved=0, share=0.0, for_s=for_s)
        rates = [_tokens_per_s(profile, tokens=tokens, hosts=hosts, moved=moved, for_s=for_s) for moved in MOVED_TOKENS]
        moving.append(Series.of(link, zip(MOVED_TOKENS, (rate / rates[0] for rate in rates), strict=True)))
        shares = [
            (share, _tokens_per_s(profile, tokens=tokens, hosts=hosts, share=share, for_s=for_s) / alone)
            for share in REMOTE_SHARES
        ]
        sharing.append(Series.of(link, shares))
        for moved, theirs in ((16, (0.0, 0.0)), (32, (8.6, 8.6))):
            loss = partial(_loss, tokens=tokens, hosts=hosts, moved=moved, for_s=for_s)
            found = Ratio(
                what=f"{link}: throughput lost while {moved} tokens move with each step, %",
                theirs=theirs,
                ours=rounded(loss(profile)),
                ours_range=profile_range(loss, profile),
            )
            ratios.append(found.explained(NOTE))
    return Figure(
        name="001-12",
        title="What an instance generates while keys and values leave it, LLaMA2-7B on A100",
        x_label="tokens that move with each decode step",
        y_label="tokens/s, times those without",
        panels=(
            Panel(title="while tokens move", series=tuple(moving)),
            Panel(
                title="by the share of keys that lies at a creditor",
                series=tuple(sharing),
                x_label="remote share",
            ),
        ),
        ratios=tuple(ratios),
        notes=(
            "The instance's pool is full: half of it one long request, of which a quarter of the pool lies at the "
            "creditor already, half requests of 500 tokens. The text says nothing of panel (b); here it is what the "
            "instance generates if more of its long request lies there.",
        ),
    )


def _tokens_per_s(
    profile: Profile, *, tokens: int, hosts: tuple[str, str], moved: int = 0, share: float = 0.25, for_s: float
) -> float:
    """Of an instance whose pool one long request and many short ones have, half each; `share` of all lies elsewhere."""
    blocks = int(share * tokens) // profile.block_tokens
    long_tokens = max(tokens // 2, blocks * profile.block_tokens + 1)
    batch = [
        Decodes(1, long_tokens, lent=((1, blocks),) if blocks else ()),
        Decodes((tokens - long_tokens) // SHORT_TOKENS, SHORT_TOKENS),
    ]
    move = Moves(moved // profile.block_tokens, target=1) if moved else None
    return ClosedLoop(profile, hosts, network_shared=True).tokens_per_s([batch, []], for_s, [move])[0]


def _loss(profile: Profile, *, tokens: int, hosts: tuple[str, str], moved: int, for_s: float) -> float:
    """In per cent."""
    with_moves = _tokens_per_s(profile, tokens=tokens, hosts=hosts, moved=moved, for_s=for_s)
    without = _tokens_per_s(profile, tokens=tokens, hosts=hosts, for_s=for_s)
    return 100 * (1 - with_moves / without)
