"""Requests of one instance from submission to their last chunk."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any, Literal

from distkv import events
from distkv.control.commands import Answer, ReleaseGrammar, TellWorker, Tokenized
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.answer.output import MakeDecoder, OutputText
from distkv.control.request.refusals import Refusals
from distkv.control.request.request import MOST_WAITED_S, Request
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.scheduler import InFlight, Planned
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_worker import Forget

MOST_ENDED = 64
"""Requests that end in one event by a cause that many have, so that the streams of others go on meanwhile."""
Kind = Literal["failed", "refused"]
"""How a request ends without its answer."""


class RequestLifecycle:
    """Takes requests in, turns step results into chunks, ends requests.

    on_lost(seq, creditor_ids): a step missed partials of these creditors. refusals: of what it does not take in.
    """

    def __init__(
        self,
        state: RManagerState,
        debts: DebtBook,
        make_decoder: MakeDecoder,
        entropy: Random,
        on_lost: Callable[[Sequence, tuple[str, ...]], None],
    ) -> None:
        self._state = state
        self._debts = debts
        self._make_decoder = make_decoder
        self._entropy = entropy
        self._on_lost = on_lost
        self._ending: dict[str, int] = {}
        self._leaving: deque[tuple[dict[str, Sequence], str]] = deque()
        self._forgotten: list[str] = []
        self.refusals = Refusals(state)

    # --- in

    def submit(self, event: Tokenized, now: float) -> None:
        """Accept a request, or say at once why not."""
        submit, route = event.submit, event.route
        self._end_before(submit.request_id, now)
        refusal = self.refusals.at_once(submit.request_id) or self.refusals.of(event, now)
        if refusal is not None:
            self._state.emit(Answer(route, refusal))
            self._release_grammar(event.grammar_id)
            return
        settings, params = self._state.settings, submit.params
        request = Request(
            request_id=submit.request_id,
            route=route,
            arrival=now - min(submit.waited_s, MOST_WAITED_S),
            params=params,
            seed=params.seed if params.seed is not None else self._entropy.getrandbits(63),
            tokens=event.token_ids[:],
            prompt_tokens=len(event.token_ids),
            deadline=None if submit.timeout_s is None else now + submit.timeout_s,
            bad_words=event.bad_words,
            ends=[one for one in settings.eos_token_ids.union(params.stop_token_ids) if one < settings.vocab_size],
            grammar_id=event.grammar_id,
            can_move=submit.can_move,
        )
        decoder = self._make_decoder(params.skip_special_tokens, event.token_ids)
        output = OutputText(decoder, params, settings.eos_token_ids)
        # Steps of an ended request of the same name may be in flight; none of their outcomes is this one's.
        attempt = self._ending.get(submit.request_id, -1) + 1
        seq = Sequence(request, output, settings.block_tokens, attempt)
        self._state.sequences[seq.request_id] = seq
        self._state.histories.begin(seq.request_id, request.prompt_tokens)
        self._state.counters.prompt_tokens += seq.request.prompt_tokens
        self._state.publish(events.Accepted(request_id=seq.request_id, prompt_tokens=seq.request.prompt_tokens))

    # --- out

    def on_result(self, message: StepResult, now: float) -> None:
        """Commit what a step did. What the worker does not answer, or not as it was wanted, is computed again."""
        step = self._state.scheduler.finished(message.step_id, message.compute_s)
        if step is None:
            self._state.publish(events.UnexpectedMessage(sender="worker", type="StepResult"))
            return
        self.observe(step, message, now)
        for result in message.results:
            self._commit(step, result, now)
        for part in list(step.planned.values()):
            self._lose(part, ())
        self._state.deferred.settle()

    def observe(self, step: InFlight, message: StepResult, now: float) -> None:
        """What the result of a step like this one says besides tokens."""
        self._state.serving.on_step(message.compute_s, message.counters.step_serve_s, step.decodes > 0, now)
        self._state.worth.observe(
            step.decodes,
            has_chunks=bool(step.chunks),
            is_remote=step.is_remote,
            compute_s=message.compute_s,
            attend_wait_s=message.counters.attend_wait_s,
            now=now,
        )

    def _commit(self, step: InFlight, result: SeqResult, now: float) -> None:
        part = step.planned.get(result.request_id)
        if part is None or result.attempt != part.attempt:
            return
        del step.planned[result.request_id]
        seq = part.seq
        if not self._is_current(part):  # also what is void: the loss that voided it was handled, its attempt ended
            return
        if result.status != "ok" or not _answers(part, result):
            self._lose(part, result.lost)
            return
        self._state.counters.recomputed_tokens += seq.computed(part.start, part.end)
        self._count_attended(part, seq.placement.block_tokens)
        self._state.paths.attended(self._state.settings.instance_id, part.remote)
        if seq.placement.debts or seq.state is not SeqState.RUNNING:  # it may wait by now, and grow with its token
            self._state.sequences.touch(seq)
        report = seq.request.report
        if report is not None and (news := report.take(part.prompt_logprobs, result.prompt_logprobs)):
            self._send(seq, prompt_logprobs=news)
        if result.problem:
            self._end_by(result, seq, now)
        elif part.sampled and result.token is not None:
            self._append(seq, result.token, result, now)

    def _end_by(self, result: SeqResult, seq: Sequence, now: float) -> None:
        """Fail or refuse what has come out wrong. If creditors took part it may be their fault: it is tried again."""
        creditors = sorted({debt.creditor_id for debt in seq.placement.debts})
        if result.is_fault and creditors:
            reason = f"{result.problem}; or what {' or '.join(creditors)} computed for it is wrong"
            self.fail(seq, reason, now, retryable=True)
        elif result.may_come_again and not result.is_fault:
            self.fail(seq, result.problem, now)
        else:
            self.fail(seq, result.problem, now, retryable=False, kind="failed" if result.is_fault else "refused")

    def _count_attended(self, part: Planned, block_tokens: int) -> None:
        rows, counters = part.end - part.start, self._state.counters
        counters.attended_tokens += rows * (part.start + part.end + 1) // 2
        counters.remote_attended_tokens += rows * sum(span.num_blocks for span in part.remote) * block_tokens

    def _is_current(self, part: Planned) -> bool:
        return self._state.sequences.get(part.seq.request_id) is part.seq and part.attempt == part.seq.attempt

    def _lose(self, part: Planned, creditor_ids: tuple[str, ...]) -> None:
        """Nothing of it counts; it is computed again in a new attempt."""
        if self._is_current(part):
            self._state.scheduler.take_back(part.seq)
            part.seq.not_computed(part.start, part.end)
            self._on_lost(part.seq, creditor_ids)

    def _append(self, seq: Sequence, token_id: int, result: SeqResult, now: float) -> None:
        request = seq.request
        is_first = len(request.tokens) == request.prompt_tokens
        seq.append(token_id)
        self._state.counters.generation_tokens += 1
        text, finish = seq.output.push(token_id, is_complete=result.complete)
        self._send(
            seq,
            token_ids=(token_id,),
            text=text,
            finish_reason=finish,
            stop_reason=seq.output.stop_reason,
            logprobs=None if result.logprobs is None else (result.logprobs,),
            queue_s=request.began - request.arrival if is_first and request.began is not None else None,
        )
        if finish is not None:
            self._state.growing.outputs.ended(seq.num_generated)
            self._end(seq, now, f"its output is complete ({finish})")
            self._state.publish(events.Finished(request_id=seq.request_id, reason=finish, generated=seq.num_generated))

    def cancel(self, request_id: str, now: float, route: bytes | None = None) -> None:
        """Stop a request wherever it is; only the client that sent it may (route None: it is gone)."""
        seq = self._state.sequences.get(request_id)
        if seq is None or (route is not None and route != seq.request.route):
            return
        if route is not None:
            self._send(seq, finish_reason="abort")
        self._end(seq, now, "its client stopped it or is gone")
        self._state.publish(events.Cancelled(request_id=request_id))

    def end_all_of(self, route: bytes, reason: str = "") -> None:
        """End all that a client has here, some now and the rest by Ticks, the newest first: queues close up behind what
        leaves them, and none of it begins meanwhile that is to end. reason: what it is told; empty if it is gone. One
        that was only stopped for a while sends here again what had no output."""
        if seqs := self._state.sequences.of_route(route):
            self._leaving.append((seqs, reason))

    def _end_leaving(self, now: float) -> None:
        """Some of those that are to end with their clients."""
        for _ in range(MOST_ENDED):
            if not self._leaving:
                return
            seqs, reason = self._leaving[0]
            self._leave(seqs.popitem()[1], reason, now)
            if not seqs:
                self._leaving.popleft()

    def _leave(self, seq: Sequence, reason: str, now: float) -> None:
        if self._state.sequences.get(seq.request_id) is not seq:
            return  # it has ended otherwise
        if reason:
            self.fail(seq, reason, now, go_to=self._state.settings.instance_id)
        else:
            self.cancel(seq.request_id, now)

    def _end_before(self, request_id: str, now: float) -> None:
        """A request comes: if one of its name is still to end, it does first."""
        old = self._state.sequences.get(request_id)
        if old is not None and self._leaving:
            for reason in [reason for seqs, reason in self._leaving if seqs.get(old.request_id) is old]:
                self._leave(old, reason, now)

    def fail(
        self,
        seq: Sequence,
        reason: str,
        now: float,
        retryable: bool = True,
        *,
        kind: Kind = "failed",
        go_to: str = "",
    ) -> None:
        """End a request without (all of) its answer. refused: it can have none, here or elsewhere. go_to: where its
        client sends it if it had no output."""
        retryable = retryable and kind == "failed"
        ended = RequestEnded(
            request_id=seq.request_id,
            kind=kind,
            reason=reason,
            retryable=retryable,
            is_draining=self._state.instance_state == "draining",
            go_to=go_to,
        )
        self._state.emit(Answer(seq.request.route, ended))
        self._end(seq, now, reason)
        self._state.publish(events.Failed(request_id=seq.request_id, reason=reason))

    def redispatch(self, seq: Sequence, instance_id: str, now: float) -> None:
        """Hand a request that has not begun back to its client, which sends it to another instance."""
        reason = f"instance {instance_id} has memory for it"
        ended = RequestEnded(request_id=seq.request_id, kind="failed", reason=reason, retryable=True, go_to=instance_id)
        self._state.emit(Answer(seq.request.route, ended))
        self._end(seq, now, f"its client was told to send it to {instance_id}, which has memory for it")
        self._state.counters.redispatched += 1
        self._state.publish(
            events.Redispatched(
                request_id=seq.request_id, instance=instance_id, waited_s=round(now - seq.request.arrival, 3)
            )
        )

    def _send(self, seq: Sequence, **fields: Any) -> None:
        """A TokenChunk with these fields besides those that all have."""
        request = seq.request
        chunk = TokenChunk(request_id=request.request_id, prompt_tokens=request.prompt_tokens, **fields)
        self._state.commands.append(Answer(request.route, chunk))

    def _end(self, seq: Sequence, now: float, why: str) -> None:
        del self._state.sequences[seq.request_id]
        self._state.histories.end(seq.request_id, why)
        self.refusals.pace.ended(now)
        self._debts.give_back(self._state.borrower.cancel(seq))
        self._debts.drop(seq, now)
        self._ending[seq.request_id] = seq.attempt
        self._state.deferred.add(None, [], lambda: self._forget(seq))

    def _forget(self, seq: Sequence) -> None:
        """The last step that names it is answered: the worker forgets it, unless its name is in use again."""
        name = seq.request_id
        self._release_grammar(seq.request.grammar_id)
        if self._ending.get(name) == seq.attempt:
            del self._ending[name]
            if name not in self._state.sequences:
                self._forgotten.append(name)

    def forget_ended(self) -> None:
        """Once per event: tell the worker which requests it may forget, for many may end with one step."""
        if self._forgotten:
            self._state.emit(TellWorker(Forget(request_ids=tuple(self._forgotten))))
            self._forgotten.clear()

    def _release_grammar(self, grammar_id: int | None) -> None:
        if grammar_id is not None:
            self._state.emit(ReleaseGrammar(grammar_id))

    # --- time

    def next_deadline(self) -> float:
        """When the next request must have ended."""
        return -math.inf if self._leaving else self._state.sequences.deadlines.next_at()

    def tick(self, now: float) -> None:
        """End what waits past its deadline, or for memory the live instances do not have, or whose client is gone."""
        self.refusals.lately_blocks(now)
        sequences = self._state.sequences
        self._end_leaving(now)
        for request_id in sequences.deadlines.take_due(now, MOST_ENDED):
            seq = sequences[request_id]
            if seq.request.began is None:
                waited_s = now - seq.request.arrival
                why = self._full_batch(seq) or self._numbers(seq)
                self.fail(seq, f"it had not begun by its deadline, after {waited_s:.3g} s: {why}", now)
            else:
                self._expire(seq, now)
        for request_id in sequences.queue.starvation.judge(self._state.cluster_blocks(), now, MOST_ENDED):
            seq = sequences[request_id]
            self.fail(seq, f"memory was lost and did not come back: {self._numbers(seq)}", now)
        self._end_out_of_reach(now)

    def _end_out_of_reach(self, now: float) -> None:
        """End what waits for memory of peers that no data has come through to for as long as others wait for memory
        that was lost. One that has memory there may not need more of it."""
        state, patience_s = self._state, self._state.settings.request_timeout_s
        starvation = state.sequences.queue.starvation
        if next(starvation.larger(state.settings.num_blocks), None) is None:
            return
        peers = state.paths.failing_since(state.settings.instance_id, now - patience_s)
        if not peers:
            return
        usable_blocks = state.cluster_blocks() - sum(map(state.members.lendable_of, peers))
        waiting = starvation.larger(usable_blocks)
        lost = (seq for seq in waiting if not any(debt.creditor_id in peers for debt in seq.placement.debts))
        for seq in list(islice(lost, MOST_ENDED)):
            self.fail(seq, f"memory elsewhere was out of reach for {patience_s:g} s: {self._numbers(seq)}", now)

    def _expire(self, seq: Sequence, now: float) -> None:
        """Its time ran out on the way: what was generated is its client's, with the text that was held back."""
        request, sent = seq.request, len(seq.request.tokens) - seq.request.prompt_tokens
        if text := seq.output.finish():
            self._send(seq, text=text)
        reason = (
            f"its {now - request.arrival:.3g} s ran out: {sent} of at most {request.params.max_tokens} tokens "
            f"were generated{self._path_failures()}"
        )
        self.fail(seq, reason, now, retryable=False)

    def _full_batch(self, seq: Sequence) -> str:
        """That it waits for a place of the batch, if not for memory."""
        if not self._state.is_batch_full or seq.size_blocks > self._state.pool.num_free:
            return ""
        return f"the batch is full, max_num_seqs is {self._state.settings.max_num_seqs}"

    def _numbers(self, seq: Sequence) -> str:
        block_tokens = self._state.settings.block_tokens
        return (
            f"it needs KV memory for {seq.size_blocks * block_tokens} tokens, "
            f"{self._state.pool.num_free * block_tokens} are free here, live instances together can give "
            f"{self._state.cluster_blocks() * block_tokens}{self._path_failures()}"
        )

    def _path_failures(self) -> str:
        failures = self._state.paths.describe()
        return f"; {failures}" if failures else ""


def _answers(part: Planned, result: SeqResult) -> bool:
    """Whether the result has just what was wanted of this part."""
    wanted = 0 if part.prompt_logprobs is None else part.prompt_logprobs.num_tokens
    return part.sampled == (result.token is not None) and len(result.prompt_logprobs) == wanted
