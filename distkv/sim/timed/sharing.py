"""Work on things that all who use them at once share equally: links, and engines that serve others."""

from __future__ import annotations

from distkv.sim.timed.agenda import Action, Agenda, Entry


class Resource:
    """capacity: work that it does each second for all who use it."""

    __slots__ = ("capacity", "jobs")

    def __init__(self, capacity: float = 1.0) -> None:
        self.capacity = capacity
        self.jobs: dict[Job, None] = {}

    @property
    def rate(self) -> float:
        """What one of those who use it now gets."""
        return self.capacity / max(1, len(self.jobs))


class Job:
    """Work that all of its resources are needed for at once: the one that gives least says how fast it goes."""

    __slots__ = ("_entry", "_left", "_rate", "_since", "done", "resources", "work")

    def __init__(self, work: float, resources: tuple[Resource, ...], done: Action, now: float) -> None:
        self.work = work
        self.resources = resources
        self.done = done
        self._left, self._rate, self._since = work, 0.0, now
        self._entry: Entry | None = None

    def left(self, now: float) -> float:
        """Work that is still to be done."""
        return max(0.0, self._left - self._rate * (now - self._since))

    def go_on(self, agenda: Agenda, finish: Action) -> None:
        """At the rate that its resources give now."""
        now = agenda.now()
        rate = min(resource.rate for resource in self.resources)
        if rate == self._rate and self._entry is not None:
            return
        self._left, self._rate, self._since = self.left(now), rate, now
        self.stop()
        self._entry = agenda.after(self._left / rate, finish)

    def stop(self) -> None:
        """Nothing comes of it any more."""
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None


class Sharing:
    """Carries out jobs. A job that comes or goes costs those with whom it shares something."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def begin(self, work: float, resources: tuple[Resource, ...], done: Action) -> Job:
        """Have so much work done; then comes `done`."""
        job = Job(work, resources, done, self._agenda.now())
        for resource in resources:
            resource.jobs[job] = None
        self._settle(job)
        return job

    def abort(self, job: Job) -> None:
        """It is not wanted any more; `done` does not come."""
        job.stop()
        for resource in job.resources:
            resource.jobs.pop(job, None)
        self._settle(job)

    def changed(self, resource: Resource) -> None:
        """Its capacity is another one now."""
        for job in list(resource.jobs):
            self._go_on(job)

    def _settle(self, changed: Job) -> None:
        """All that share something with a job that came or went go on at another rate."""
        for job in {job: None for resource in changed.resources for job in resource.jobs}:
            self._go_on(job)

    def _go_on(self, job: Job) -> None:
        job.go_on(self._agenda, lambda: self._finish(job))

    def _finish(self, job: Job) -> None:
        self.abort(job)
        job.done()
