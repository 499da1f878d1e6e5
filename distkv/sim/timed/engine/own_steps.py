"""The Steps of a modelled engine, one after the other.

A step reads what it fetches, then computes all but attention, then attends: here, and at creditors meanwhile, whose
partials it waits for. In a real step these alternate layer by layer; the sum is the same (`performance.model`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from distkv.control.performance.model import UNCROWDED
from distkv.sim.timed.engine.around import Around
from distkv.sim.timed.engine.losses import Losses
from distkv.sim.timed.engine.one_step import Known, Running, Todo
from distkv.sim.timed.engine.serving import Server
from distkv.sim.timed.engine.step_work import Ask, StepTimes, StepWork
from distkv.sim.timed.engine.stretch import Keep, Stretch, stretch_from
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters


class OwnSteps:
    """slow: how many times as long they take as their profile says. Each is answered by `reply`."""

    def __init__(
        self,
        name: str,
        host: str,
        times: StepTimes,
        around: Around,
        server: Server,
        counters: Counters,
        count: Callable[[], Counters],
        reply: Callable[[fw.StepResult], None],
    ) -> None:
        """name: of the instance. server: whose work for debtors makes steps longer. counters: to count in. count: all
        that the engine has counted, for the answer."""
        self.slow = 1.0
        self._name = name
        self._times, self._around, self._agenda = times, around, around.agenda
        self._traffic = around.traffic.setdefault(host, {})
        self._server, self._counters = server, counters
        self._count, self._reply = count, reply
        self._todo: deque[Todo] = deque()
        self._newest = Todo(tw.Step(step_id=0, seqs=()))
        self._known = Known(self._newest.step, [], StepWork())
        self._running: Running | None = None
        self._stretch: Stretch | None = None
        self._losses = Losses(around.engines)

    @property
    def is_computing(self) -> bool:
        """Whether one is under way."""
        return self._running is not None

    def add(self, step: tw.Step) -> None:
        """Compute it, behind those that came before."""
        self._do(Todo(step))

    def repeat(self) -> None:
        """Compute the newest once more, a position further, as the next."""
        self._do(self._newest.further(1))

    def repeat_alone(self, most: int, until: float, pipe_s: float, keep: Keep) -> None:
        """The newest is repeated whenever a result is heard of, `pipe_s` later, at most so many times and before
        `until`, as long as `settle` is not called. If nothing else can happen to these steps, they are computed at
        once; `keep` gets their results then."""
        running = self._running
        if (
            running is not None
            and running.ends is not None
            and len(self._todo) == 1
            and running.todo.step is self._newest.step
            and not running.owed_s
            and not running.work.chunk_tokens
            and not self._losses
            and not self._server.is_serving
            and not self._times.profile.can_crowd
        ):
            self._stretch = stretch_from(running, self._times, most, until, pipe_s, keep)
            if self._stretch is not None:
                running.ends.cancel()
                running.ends = self._agenda.at(self._stretch.ends[-1], self._end_stretch)

    def settle(self) -> None:
        """Something comes that may disturb a stretch: what has been computed by now is told, the rest is to come."""
        if (stretch := self._stretch) is None:
            return
        now, ended = self._agenda.now(), stretch.num_ended(self._agenda.now())
        running = self._go_on_behind(stretch, ended)
        if ended and stretch.ends[ended - 1] + stretch.pipe_s >= now:
            self._newest = running.todo
            self._todo.clear()
        running.ends = self._agenda.at(stretch.ends[ended], lambda: self._finish(running))

    def forget(self, request_ids: Iterable[str]) -> None:
        """What was lost of these does not matter any more."""
        self._losses.forget(request_ids)

    def served(self) -> None:
        """A debtor came: what computes here meanwhile takes longer for it, once."""
        self.settle()
        if self._running is not None:
            slowing_s = self._server.take_slowing_s()
            self._running.owed_s += slowing_s
            self._counters.step_serve_s += slowing_s

    def stop(self) -> None:
        """The process has ended."""
        if self._running is not None:
            self._traffic.pop(self._name, None)
            self._running = self._stretch = None

    def _do(self, todo: Todo) -> None:
        assert self._stretch is None, "a Step comes within a stretch"
        self._newest = todo
        self._todo.append(todo)
        self._begin_step()

    def _begin_step(self) -> None:
        if self._running is not None or not self._todo:
            return
        todo = self._todo.popleft()
        known = self._look_at(todo.step)
        seqs, work = known.seqs, known.work.ahead(todo.ahead)
        can_crowd = bool(seqs) and self._times.profile.can_crowd
        times, rest_s = self._times.crowding(work, self._traffic, self._name) if can_crowd else UNCROWDED
        factor = self.slow * times
        began_s, owed_s = self._agenda.now() + rest_s, self._server.take_slowing_s()
        self._counters.step_serve_s += owed_s
        running = self._running = Running(todo, known, work, began_s, factor, owed_s)
        if not work.asks:
            compute_s = factor * (self._times.base_s(work) + self._times.attention_s(work)) if seqs else 0.0
            running.ends = self._agenda.at(began_s + compute_s, lambda: self._finish(running))
            return
        self._counters.remote_steps += 1
        if rest_s:
            self._agenda.at(began_s, lambda: self._fetch(running))
        else:
            self._fetch(running)

    def _look_at(self, step: tw.Step) -> Known:
        """What is lost changes what a Step asks for; else it is looked at once, however often it is computed."""
        if self._known.step is not step or self._losses:
            seqs = self._losses.without(step.seqs)
            self._known = Known(step, seqs, self._times.work_of(seqs, self._ships))
        return self._known

    def _fetch(self, running: Running) -> None:
        """Read what chunks attend to here though it lies at creditors, over all links at once."""
        if self._running is not running:
            return
        running.parts = 1
        began_s = self._agenda.now()

        def arrived() -> None:
            running.parts -= 1
            if not running.parts and self._running is running:
                self._counters.attend_wait_s += self._agenda.now() - began_s
                base_s = running.factor * self._times.base_s(running.work)
                self._agenda.after(base_s, lambda: self._attend(running))

        profile, links = self._times.profile, self._around.links
        for creditor, ask in running.work.asks.items():
            if ask.fetched_tokens and creditor in self._around.engines:
                self._counters.fetched_blocks += ask.fetched_tokens // profile.block_tokens
                if not self._is_mapped(creditor):
                    running.parts += 1
                    num_bytes = profile.layers * profile.kv_bytes * ask.fetched_tokens
                    self._counters.fetched_bytes += num_bytes
                    links.read(self._name, creditor, num_bytes, arrived)
        arrived()

    def _attend(self, running: Running) -> None:
        """Attention here, and at creditors meanwhile."""
        if self._running is not running:
            return
        own_s = running.factor * self._times.attention_s(running.work)
        running.own_end_s = self._agenda.now() + own_s
        running.parts = 1
        self._losses.find(running)
        for creditor_id, ask in running.work.asks.items():
            if ask.rows and any(index not in running.lost for index in ask.seqs):
                self._ask(running, creditor_id, ask)
        self._agenda.after(own_s, lambda: self._part_done(running))

    def _ask(self, running: Running, creditor_id: str, ask: Ask) -> None:
        creditor = self._around.engines[creditor_id]
        busy = creditor.is_computing
        exchange_s = self._around.links.exchange_s(self._name, creditor_id, ask.rows, busy=busy)
        profile = self._times.profile
        row_bytes = profile.layers * (profile.query_bytes + profile.partial_bytes)
        self._counters.query_bytes += ask.rows * row_bytes
        running.parts += 1

        def lost() -> None:
            for index in ask.seqs:
                running.lost.setdefault(index, set()).add(creditor_id)
            self._part_done(running)

        def asked() -> None:
            if creditor.alive:
                creditor.serve(ask, lambda: self._part_done(running), lost)
            else:
                lost()

        self._agenda.after(exchange_s, asked)

    def _part_done(self, running: Running) -> None:
        running.parts -= 1
        if not running.parts and self._running is running:
            self._counters.attend_wait_s += max(0.0, self._agenda.now() - running.own_end_s)
            self._finish(running)

    def _finish(self, running: Running) -> None:
        if self._running is not running:
            return
        if running.owed_s:
            owed_s, running.owed_s = running.owed_s, 0.0
            self._agenda.after(owed_s, lambda: self._finish(running))
            return
        self._running = None
        self._traffic.pop(self._name, None)
        self._counters.steps += 1
        self._counters.model_s += self._agenda.now() - running.began_s
        results = self._losses.results(running)
        self._reply(
            fw.StepResult(
                step_id=running.todo.step_id,
                results=results,
                compute_s=self._agenda.now() - running.began_s,
                counters=self._count(),
            )
        )
        self._begin_step()

    def _end_stretch(self) -> None:
        if (stretch := self._stretch) is not None:
            self._finish(self._go_on_behind(stretch, len(stretch.ends) - 1))

    def _go_on_behind(self, stretch: Stretch, ended: int) -> Running:
        """Tell of as many steps of a stretch; the next one is under way, and the one behind it is to do."""
        self._stretch = None
        first = stretch.first
        assert first.ends is not None
        first.ends.cancel()
        if not ended:
            self._running = first
            return first
        taken = stretch.took(ended)
        self._counters.steps += ended
        for took_s in taken:
            self._counters.model_s += took_s
        results, counters = self._losses.results(first), self._count()
        stretch.keep(
            [
                fw.StepResult(first.todo.step_id + index, results, took_s, counters)
                for index, took_s in enumerate(taken)
            ],
            [end_s + stretch.pipe_s for end_s in stretch.ends[:ended]],
        )
        todo = first.todo.further(ended)
        work, began_s = first.work.ahead(ended), stretch.ends[ended - 1]
        running = self._running = Running(todo, first.known, work, began_s, first.factor, 0.0)
        self._newest = todo.further(1)
        self._todo[0] = self._newest
        return running

    def _ships(self, creditor: str, rows: int, tokens: int, local_tokens: int) -> bool:
        """Whether a chunk's queries travel, by what both ways take (000, Fig. 12)."""
        engine = self._around.engines.get(creditor)
        if engine is None:
            return True
        model, link = self._times.model, self._around.links.kind(self._name, creditor)
        busy = engine.is_computing
        fetched = 0 if self._is_mapped(creditor) else None
        ship_s = model.ship_s(rows, tokens, local_tokens=local_tokens, link=link, busy=busy)
        return ship_s <= model.fetch_s(rows, tokens, fetched_tokens=fetched, link=link)

    def _is_mapped(self, creditor: str) -> bool:
        """Whether its pool can be read in place: instances of one host that compute on CPUs map each other's."""
        return self._times.profile.threads > 0 and self._around.links.kind(self._name, creditor) == "host"
