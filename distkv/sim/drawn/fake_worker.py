"""An engine worker without tensors: it keeps, for every slot, which token of which request lies at each position.

A step checks what attention would read: each position before the query must be there exactly once, local or in a live
span of a creditor, and hold this request's token. The sampled token is a hash of all tokens before it, so one wrong,
missing or stale rBlock anywhere changes the output or fails the assertion; instead of one that may not be chosen comes
the next that may. Grammar n is complete after n tokens. A history must be what attention reads, and logprobs are
hashes of a position and its token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Seq

from distkv.checksums import pack
from distkv.checksums import unpack as unpack_checksums
from distkv.token_ids import unpack
from distkv.types import TokenLogprobs
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.envelope import ToWorker

VOCAB = 1000
Reply = fw.StepResult | fw.Checksummed | fw.Pulled | fw.Linked | fw.Revoked
Entry = tuple[str, int, int]  # request, position, token


def next_token(tokens: Seq[int]) -> int:
    """What the "model" says after these tokens."""
    digest = hashlib.blake2b(repr(list(tokens)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) % VOCAB


def choose(tokens: Seq[int], sampling: tw.Sampling) -> int:
    """What follows these tokens where some may not be chosen."""
    output = list(tokens[sampling.prompt_tokens :])
    left_out = set(sampling.forbidden_token_ids)
    left_out |= {word[-1] for word in sampling.bad_words if tuple(output[1 - len(word) :]) == word[:-1]}
    token = next_token(tokens)
    while token in left_out or token not in (sampling.allowed_token_ids or range(VOCAB)):
        token = (token + 1) % VOCAB
    return token


def expected_output(prompt: Seq[int], max_tokens: int) -> list[int]:
    """What an undisturbed request generates."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def logprobs_at(position: int, token: int, top: int) -> TokenLogprobs:
    """What the "model" says of a token at a position."""
    return TokenLogprobs(token, -float(next_token([position, token])), 1, tuple((other, 0.0) for other in range(top)))


class FakeWorker:
    """One instance's worker; `peers` maps instance ids to the workers of all instances, this one included.

    alive, frozen: as its process is; peers read nothing from one that is not there.
    cut_from: instances that it reads nothing from, though they are there. pulls_fail: whatever it pulls.
    listed: incarnations of the peers that it may read from, None before it was told.
    stalled: its steps stand still, as on a device that hangs; peers still read.
    step_s, serve_s: what it says that a step takes, and that serving one block for a peer's step adds to its own next
    one; each lent block counts once in that. costs: what it says that a step took besides, and of that waited for
    partials, in seconds.
    """

    def __init__(self, instance_id: str, incarnation: int, num_slots: int, block_tokens: int) -> None:
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.block_tokens = block_tokens
        self.pool: list[list[Entry | None]] = [[None] * block_tokens for _ in range(num_slots)]
        self.spans: dict[str, tw.Grant] = {}
        self.closed: dict[str, set[int]] = {}
        self.alive = True
        self.frozen = False
        self.cut_from: set[str] = set()
        self.pulls_fail = False
        self.stalled = False
        self.step_s = 0.0
        self.serve_s = 0.0
        self.costs: Callable[[tw.Step], tuple[float, float]] = lambda _: (0.0, 0.0)
        self.counters = Counters()
        self._served_blocks = 0
        self.peers: dict[str, FakeWorker] = {}
        self.listed: dict[str, int] | None = None
        self.last_token: dict[str, int] = {}
        self.lost_attempt: dict[str, int] = {}
        self.histories: dict[str, dict[int, int]] = {}

    @property
    def is_readable(self) -> bool:
        """Whether peers get anything from it."""
        return self.alive and not self.frozen

    def checksum(self, slot: int) -> int:
        """Of what lies in a slot."""
        digest = hashlib.blake2b(repr(self.pool[slot]).encode(), digest_size=8).digest()
        return int.from_bytes(digest)

    def close(self, revoke: tw.Revoke) -> None:
        """Let nobody read the span, or these positions of it, any more; `handle(revoke)` answers."""
        name = revoke.span.span_id
        if revoke.positions:
            self.closed.setdefault(name, set()).update(revoke.positions)
        else:
            self.spans.pop(name, None)
            self.closed.pop(name, None)

    def has_closed(self, part: tw.RemoteSpan) -> bool:
        """Whether a position of this part of a span is closed to readers."""
        closed = self.closed.get(part.span.span_id, set())
        return any(part.index + i in closed for i in range(part.num_blocks))

    def handle(self, message: ToWorker) -> list[Reply]:
        """Carry a message out; returns the answers. AssertionError if a Step reads what its sequence did not write."""
        match message:
            case tw.Step():
                results = tuple(self._run(seq) for seq in message.seqs)
                served_s = self._take_served_s()
                compute_s, waited_s = self.costs(message)
                self.counters.attend_wait_s += waited_s
                return [
                    fw.StepResult(
                        step_id=message.step_id,
                        results=results,
                        compute_s=self.step_s + served_s + compute_s,
                        counters=total(self.counters),
                    )
                ]
            case tw.Checksum():
                return [
                    fw.Checksummed(
                        checksum_id=message.checksum_id, checksums=pack(self.checksum(s) for s in message.slots)
                    )
                ]
            case tw.Grant():
                self.spans[message.span.span_id] = message
            case tw.Revoke():
                self.close(message)
                return [fw.Revoked(span=message.span, positions=message.positions)]
            case tw.Pull():
                return [fw.Pulled(pull_id=message.pull_id, problem=self._pull(message))]
            case tw.Link():
                return [
                    fw.Linked(
                        instance_id=message.instance_id,
                        incarnation=message.incarnation,
                        problem=self._link_problem(message),
                    )
                ]
            case tw.Peers():
                known = {name: life for name, life in (self.listed or {}).items() if name not in message.gone}
                self.listed = known | {member.instance_id: member.incarnation for member in message.members}
            case tw.Forget():
                for request_id in message.request_ids:
                    self.last_token.pop(request_id, None)
                    self.histories.pop(request_id, None)
        return []

    def _take_served_s(self) -> float:
        """What serving peers since its last step adds to this one."""
        num_lent = sum(len(grant.slots) for grant in self.spans.values())
        served_s, self._served_blocks = self.serve_s * min(self._served_blocks, num_lent), 0
        self.counters.step_serve_s += served_s
        return served_s

    def _source(self, instance_id: str) -> FakeWorker | None:
        """The worker of an instance, if something can be read from it."""
        source = self.peers.get(instance_id)
        if source is None or not source.is_readable or instance_id in self.cut_from:
            return None
        is_listed = self.listed is None or self.listed.get(instance_id) == source.incarnation
        return source if is_listed else None

    def _link_problem(self, link: tw.Link) -> str:
        peer = self._source(link.instance_id)
        return "" if peer is not None and peer.incarnation == link.incarnation else "no link within 1 s"

    def _pull(self, pull: tw.Pull) -> str:
        source = self._source(pull.source_id)
        if source is None or source.incarnation != pull.source_incarnation:
            return "the source is gone"
        if self.pulls_fail:
            return "the pull failed"
        if pull.span is not None and pull.span not in {grant.span for grant in self.spans.values()}:
            return "the span is gone"
        expected = unpack_checksums(pull.checksums)
        for from_slot, slot, checksum in zip(pull.source_slots, pull.slots, expected, strict=True):
            if source.checksum(from_slot) != checksum:
                return "checksum mismatch"
            self.pool[slot] = list(source.pool[from_slot])
        return ""

    def _run(self, seq: tw.SeqStep) -> fw.SeqResult:
        name, attempt = seq.request_id, seq.attempt
        if self.lost_attempt.get(name, -1) >= attempt:
            return fw.SeqResult(request_id=name, attempt=attempt, status="void")
        self._write(seq, self._tokens(seq))
        context, lost = self._attend(seq)
        if lost:
            self.lost_attempt[name] = attempt
            return fw.SeqResult(request_id=name, attempt=attempt, status="lost", lost=tuple(sorted(lost)))
        assert sorted(context) == list(range(seq.end)), f"{name}: positions {sorted(context)} for [0, {seq.end})"
        token = logprobs = None
        complete = False
        if seq.sample is not None:
            token = self._sample(seq, seq.sample, [context[position] for position in range(seq.end)])
            complete = seq.end + 1 - seq.sample.prompt_tokens == seq.sample.grammar_id
            if seq.sample.logprobs is not None:
                logprobs = logprobs_at(seq.end, token, seq.sample.logprobs)
        return fw.SeqResult(
            request_id=name,
            attempt=attempt,
            status="ok",
            token=token,
            logprobs=logprobs,
            prompt_logprobs=self._prompt_logprobs(seq),
            complete=complete,
        )

    def _tokens(self, seq: tw.SeqStep) -> list[int]:
        """Of positions [start, end); the last may be the one that was sampled just before."""
        tokens = list(unpack(seq.tokens))
        if len(tokens) == seq.end - seq.start - 1:
            tokens.append(self.last_token[seq.request_id])
        assert len(tokens) == seq.end - seq.start
        return tokens

    def _write(self, seq: tw.SeqStep, tokens: list[int]) -> None:
        if seq.history:
            history = self.histories.setdefault(seq.request_id, {})
            history.update(zip(range(seq.start, seq.end), tokens, strict=True))
        for run in seq.local:
            for i in range(run.num_blocks):
                first = (run.first_block + i) * self.block_tokens
                for offset in range(self.block_tokens):
                    if seq.start <= first + offset < seq.end:
                        entry = (seq.request_id, first + offset, tokens[first + offset - seq.start])
                        self.pool[run.first_slot + i][offset] = entry

    def _attend(self, seq: tw.SeqStep) -> tuple[dict[int, int], set[str]]:
        """The token at each position that attention finds, and the creditors that do not answer."""
        context: dict[int, int] = {}
        lost: set[str] = set()
        for run in seq.local:
            for i in range(run.num_blocks):
                self._read(self.pool[run.first_slot + i], run.first_block + i, seq, context)
        for remote in seq.remote:
            peer = self._source(remote.instance_id)
            grant = None if peer is None else peer.spans.get(remote.span.span_id)
            if peer is None or grant is None or grant.span != remote.span or peer.has_closed(remote):
                lost.add(remote.instance_id)
                continue
            peer._served_blocks += remote.num_blocks
            for i in range(remote.num_blocks):
                self._read(peer.pool[grant.slots[remote.index + i]], remote.first_block + i, seq, context)
        return context, lost

    def _read(self, block: list[Entry | None], number: int, seq: tw.SeqStep, context: dict[int, int]) -> None:
        name = seq.request_id
        for offset, entry in enumerate(block):
            position = number * self.block_tokens + offset
            if position >= seq.end:
                break
            assert entry is not None and entry[:2] == (name, position), f"{name}@{position} reads {entry}"
            assert position not in context, f"{name}@{position} is attended twice"
            context[position] = entry[2]

    def _sample(self, seq: tw.SeqStep, sampling: tw.Sampling, context: list[int]) -> int:
        if seq.history:
            history = self.histories[seq.request_id]
            assert [history[position] for position in range(seq.end)] == context
        token = self.last_token[seq.request_id] = choose(context, sampling)
        return token

    def _prompt_logprobs(self, seq: tw.SeqStep) -> tuple[TokenLogprobs, ...]:
        wanted = seq.prompt_logprobs
        if wanted is None:
            return ()
        assert seq.start < wanted.first <= wanted.first + wanted.num_tokens <= seq.end + 1
        ids = unpack(wanted.token_ids)
        return tuple(logprobs_at(wanted.first + i, token, wanted.top) for i, token in enumerate(ids))
