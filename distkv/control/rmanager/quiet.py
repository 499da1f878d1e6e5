"""Quiet decode: all that runs decodes, nobody who waits can begin, nothing is under way, no timer is due. Then each
result of the worker brings every sequence a token, and the next step is the one before, a position further.

Nothing can be decided meanwhile, so whoever hands results to an rManager may keep some and hand them over together
(`commands.Decoded`): it does with them what it would have done with each when it came. The simulator does that; in a
real instance every token is its client's at once.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Protocol

from distkv.control.blocks import SlotState
from distkv.control.commands import ClientRequested, Continued, Event
from distkv.control.rmanager.reports.heartbeats import Heartbeats
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.scheduler import InFlight, Planned
from distkv.control.serving.limit import ServingLimit
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_rmanager import KeepAlive

MOST_RESULTS = 256
"""That are kept."""
_TOKEN = attrgetter("token")


def is_apart(event: Event) -> bool:
    """Whether an event is nothing to decode, so that results that are kept need not be handed over before it."""
    return isinstance(event, ClientRequested) and isinstance(event.message, KeepAlive)


class MayAct(Protocol):
    """A part that does things by itself."""

    @property
    def is_idle(self) -> bool:
        """Whether it does nothing, nor would while all that runs decodes on."""
        ...


class QuietDecode:
    """Results that are kept, and when each came. They are to be handed over, by `commands.Decoded`, before anything
    else is that is not `is_apart`."""

    def __init__(self, most: int, until: float, serving: ServingLimit) -> None:
        """most: results that may be kept. until: when a timer is due. serving: as it is now."""
        self.results: list[StepResult] = []
        self.times: list[float] = []
        self.until = until
        self._most = most
        self._serving = copy.copy(serving)
        self._num_seen = 0
        self._seen: tuple[SeqResult, ...] = ()

    def takes(self, result: StepResult, now: float) -> bool:
        """Whether a result that comes now may be kept, as it is then. If not, it is to be handled itself, as all that
        come after it. For each that is kept the worker is to compute the newest Step again, a position further."""
        if not self.room or now >= self.until or not self._is_plain(result):
            return False
        if not self._is_unserved(result):
            self._see_serving()
            self._serving.on_step(result.compute_s, result.counters.step_serve_s, True, now)
            self._num_seen += 1
            if not self._serving.is_well:
                return False
        self.results.append(result)
        self.times.append(now)
        return True

    @property
    def room(self) -> int:
        """How many more may be kept."""
        return self._most - len(self.results)

    @property
    def takes_alike(self) -> bool:
        """Whether results like the last one that was taken, by which nothing is served either, are taken until there
        is no `room`, or it is `until`."""
        return self._is_unserved(self.results[-1])

    def keep(self, results: Seq[StepResult], times: Seq[float]) -> None:
        """Such results have come, at these times."""
        assert len(results) <= self.room
        self.results += results
        self.times += times

    def _is_unserved(self, result: StepResult) -> bool:
        """Whether `serving` is well however long the step took. It may not know of such results yet."""
        return self._serving.is_unserved(result.counters.step_serve_s)

    def _see_serving(self) -> None:
        """`serving` knows of all that are kept."""
        for result, at in zip(self.results[self._num_seen :], self.times[self._num_seen :], strict=True):
            self._serving.on_step(result.compute_s, result.counters.step_serve_s, True, at)
        self._num_seen = len(self.results)

    def _is_plain(self, result: StepResult) -> bool:
        """Whether each sequence has a token by it, and nothing else."""
        if result.results is not self._seen:
            if not all(one.status == "ok" and one.token is not None and not one.problem for one in result.results):
                return False
            self._seen = result.results
        return True


class Quiet:
    """Says when one rManager's decode is quiet, and handles what was kept meanwhile.

    observe(step, result, now): the result of a step like this one has come. may_act: parts that must be idle.
    """

    def __init__(
        self,
        state: RManagerState,
        heartbeats: Heartbeats,
        observe: Callable[[InFlight, StepResult, float], None],
        may_act: Seq[MayAct],
    ) -> None:
        self._state = state
        self._heartbeats = heartbeats
        self._observe = observe
        self._may_act = may_act

    def begin(self, until: float) -> QuietDecode | None:
        """What takes the next result, and those after it; None if the next one must be handled. until: the next
        deadline of the rManager."""
        if not self._is_quiet or not (most := min(MOST_RESULTS, self._most_steps())):
            return None
        return QuietDecode(most, until, self._state.serving)

    def handle(self, results: Seq[StepResult], times: Seq[float]) -> Continued:
        """Do with results that were kept what would have been done with each of them; returns what clients get."""
        scheduler = self._state.scheduler
        oldest = scheduler.in_flight[0]
        assert [one.step_id for one in results] == list(range(oldest.step_id, oldest.step_id + len(results)))
        for result, now in zip(results, times, strict=True):
            self._heartbeats.on_step(result.compute_s)
            scheduler.observe(oldest, result.compute_s)
            self._observe(oldest, result, now)
        num_steps = len(results)
        parts = list(oldest.planned.values())
        slots = self._take_slots(parts, num_steps)
        columns = list(_columns(results))
        for part, taken, (tokens, _) in zip(parts, slots, columns, strict=True):
            self._commit(part, taken, tokens)
        token_ids = tuple([token_ids for _, token_ids in columns])
        texts = tuple([part.seq.output.extend(ids) for part, ids in zip(parts, token_ids, strict=True)])
        counters = self._state.counters
        counters.generation_tokens += num_steps * len(parts)
        counters.attended_tokens += num_steps * sum([part.start + 1 for part in parts])
        counters.attended_tokens += num_steps * (num_steps - 1) // 2 * len(parts)
        scheduler.repeated(num_steps)
        return Continued(tuple(oldest.planned), token_ids, texts)

    # --- whether it is quiet

    @property
    def _is_quiet(self) -> bool:
        state, sequences = self._state, self._state.sequences
        return (
            len(sequences.running) > 0
            and not state.borrower.active
            and not state.borrower.finished
            and not state.deferred
            and not sequences.touched
            and state.instance_state == "ready"
            and not state.serving.is_limited
            and state.serving.is_well
            and not self._heartbeats.has_news
            and all(part.is_idle for part in self._may_act)
        )

    def _most_steps(self) -> int:
        """How many steps may follow that compute the same, with slots for all, as many left as sequences run, and one
        for who waits."""
        state, block_tokens = self._state, self._state.settings.block_tokens
        running = list(state.running())
        if not state.scheduler.decodes_only(len(running)):
            return 0
        most = min([seq.num_alike for seq in running])
        keep = len(running) + (1 if state.sequences.num_waiting else 0)
        if (spare := state.pool.num_free - keep) < 0:
            return 0
        begins = sorted([(1 - seq.length) % block_tokens for seq in running])
        rounds, rest = divmod(spare, len(running))
        return min(most, rounds * block_tokens + begins[rest])

    # --- what was kept

    def _take_slots(self, parts: Seq[Planned], num_steps: int) -> list[list[int]]:
        """For the rBlocks that the steps begin, in the order of the steps and of the sequences in each; returns those
        of each sequence.

        A sequence begins one every `block_tokens` steps, so all take turns in one order: that of their first ones.
        """
        block_tokens, num_parts = self._state.settings.block_tokens, len(parts)
        num_sent = len(self._state.scheduler.in_flight)
        begins = [-(part.start + num_sent) % block_tokens for part in parts]
        count = sum([-(-(num_steps - begin) // block_tokens) for begin in begins if begin < num_steps])
        slots = self._state.pool.allocate_singly(count, SlotState.LOCAL)
        taken: list[list[int]] = [[]] * num_parts
        for turn, index in enumerate(sorted(range(num_parts), key=begins.__getitem__)):
            taken[index] = slots[turn::num_parts]
        return taken

    def _commit(self, part: Planned, slots: list[int], tokens: array[int]) -> None:
        """What steps did for one sequence, the first of them as it was planned. slots: for the rBlocks that were
        begun."""
        state, seq = self._state, part.seq
        if again := seq.decoded(part.start, tokens, slots):
            state.counters.recomputed_tokens += again
        if part.remote:
            blocks = sum(span.num_blocks for span in part.remote)
            state.counters.remote_attended_tokens += len(tokens) * blocks * seq.placement.block_tokens
            state.paths.attended(state.settings.instance_id, part.remote)


def _columns(results: Seq[StepResult]) -> Iterator[tuple[array[int], tuple[int, ...]]]:
    """The tokens of each sequence, to be kept and to be sent. Results of an engine that samples always the same are one
    object."""
    first = results[0].results
    if all(result.results is first for result in results):
        columns = {token: (token,) * len(results) for token in set(map(_TOKEN, first))}
        arrays = {token: array("i", column) for token, column in columns.items()}
        return ((arrays[_TOKEN(one)], columns[_TOKEN(one)]) for one in first)
    found = (tuple(map(_TOKEN, column)) for column in zip(*(result.results for result in results), strict=True))
    return ((array("i", column), column) for column in found)
