"""The step thread's links to creditors: opened beside it, one of a kind for each creditor and microbatch.

A step never connects. It waits a moment for a link that is being opened for the first time, and for none that failed
before: to a black hole an attempt takes its whole timeout, and whoever else is in the batch would wait with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from distkv.errors import LinkClosed, LinkError
from distkv.wire.links import TensorLink
from distkv.wire.messages.common import Member

LINK_WAIT_S = 0.1
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""After an attempt that failed the next one waits; each time twice as long, until one succeeds."""

Key = tuple[str, int]
"""A creditor's instance id and a microbatch."""

Report = Callable[[str], None]
"""Takes the end of an attempt: why there is no link, or an empty text."""


class Usable(Protocol):
    """What a step does with a link: asks by it, or reads blocks."""

    @property
    def broken(self) -> bool: ...


Use = TypeVar("Use", bound=Usable)


@dataclass(slots=True)
class Opened(Generic[Use]):
    """A link, and the incarnation of the creditor that it leads to."""

    incarnation: int
    link: TensorLink
    creditor: Use


@dataclass(slots=True)
class Attempt:
    """To link to a creditor as the member list names it. Once it is `done`: `why` it failed, and when to try again."""

    member: Member
    reports: list[Report] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    why: str = ""
    retry_at: float = 0.0


class CreditorLinks(Generic[Use]):
    """Links of one kind. Used by the step thread; `prepare` and `keep_only` by any.

    open_link(member): blocks until there is a link. Raises LinkError. make(link, instance_id, on_silent): what a step
    does with a link; it calls on_silent when it has waited in vain.
    """

    def __init__(
        self,
        open_link: Callable[[Member], TensorLink],
        make: Callable[[TensorLink, str, Callable[[], None]], Use],
    ) -> None:
        self._open_link, self._make = open_link, make
        self._lock = threading.Lock()
        self._opened: dict[Key, Opened[Use]] = {}
        self._attempts: dict[Key, Attempt] = {}
        self._pauses_s: dict[str, float] = {}

    def find(self, member: Member, microbatch: int) -> Use | None:
        """A usable link; None while there is none. Waits for nothing, and begins to open one."""
        key = member.instance_id, microbatch
        with self._lock:
            opened = self._usable(key, member)
            if opened is None:
                self._attempt(key, member, time.monotonic())
            return None if opened is None else opened.creditor

    def get(self, member: Member, microbatch: int) -> Use:
        """A usable link. Raises LinkClosed when there is none yet, or none can be had."""
        key = member.instance_id, microbatch
        with self._lock:
            opened = self._usable(key, member)
            if opened is not None:
                return opened.creditor
            failed_before = member.instance_id in self._pauses_s
            attempt = self._attempt(key, member, time.monotonic())
        if not failed_before:
            attempt.done.wait(LINK_WAIT_S)
        with self._lock:
            opened = self._usable(key, member)
            if opened is not None:
                return opened.creditor
            if not attempt.done.is_set():
                self._pauses_s.setdefault(member.instance_id, FIRST_PAUSE_S)
        raise LinkClosed(member.instance_id, attempt.why or "it is not linked yet")

    def prepare(self, member: Member, report: Report) -> None:
        """Have a link for the first microbatch; `report` is called when there is one, or none can be had."""
        key = member.instance_id, 0
        with self._lock:
            is_over, why = self._usable(key, member) is not None, ""
            if not is_over:
                attempt = self._attempts.get(key)
                if attempt is None or attempt.done.is_set() or attempt.member != member:
                    attempt = self._start(key, member)
                attempt.reports.append(report)
                if is_over := attempt.done.is_set():
                    attempt.reports.clear()
                    why = attempt.why
        if is_over:
            report(why)

    def keep_only(self, members: dict[str, Member]) -> None:
        """End links to incarnations that are not among these, also in the middle of a wait."""
        with self._lock:
            for instance_id in [i for i in self._pauses_s if i not in members]:
                del self._pauses_s[instance_id]
            for key in [key for key in self._attempts if key[0] not in members]:
                del self._attempts[key]
            self._end([key for key, one in self._opened.items() if not _leads_to(members.get(key[0]), one)])

    def _usable(self, key: Key, member: Member) -> Opened[Use] | None:
        """With the lock held. A link that failed, or leads to another incarnation, ends here."""
        opened = self._opened.get(key)
        if opened is None:
            return None
        if opened.creditor.broken or opened.incarnation != member.incarnation:
            del self._opened[key]
            opened.link.abort()
            return None
        return opened

    def _attempt(self, key: Key, member: Member, now: float) -> Attempt:
        """With the lock held: the attempt under way, the last one if its pause is not over, or a new one."""
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.member == member and (not attempt.done.is_set() or now < attempt.retry_at):
            return attempt
        return self._start(key, member)

    def _start(self, key: Key, member: Member) -> Attempt:
        attempt = self._attempts[key] = Attempt(member)
        name = f"link to {member.instance_id}"
        try:
            threading.Thread(target=self._run, args=(key, attempt), name=name, daemon=True).start()
        except RuntimeError as error:  # the system gives no more of them
            attempt.why = str(error)
            self._give_up(attempt)
            attempt.done.set()
        return attempt

    def _give_up(self, attempt: Attempt) -> None:
        """With the lock held: there is no link now, and no attempt for a while."""
        instance_id = attempt.member.instance_id
        pause_s = self._pauses_s.get(instance_id, FIRST_PAUSE_S)
        self._pauses_s[instance_id] = min(LONGEST_PAUSE_S, 2.0 * pause_s)
        attempt.retry_at = time.monotonic() + pause_s

    def _run(self, key: Key, attempt: Attempt) -> None:
        """The thread of one attempt."""
        instance_id, incarnation = attempt.member.instance_id, attempt.member.incarnation
        link: TensorLink | None = None
        try:
            link = self._open_link(attempt.member)
        except (LinkError, RuntimeError, OSError) as error:  # of a link that needs what the system does not give
            attempt.why = error.why if isinstance(error, LinkClosed) else str(error)
        with self._lock:
            if self._attempts.get(key) is not attempt:
                attempt.why = attempt.why or "the member list changed"
            elif link is not None and (creditor := self._made(link, attempt)) is not None:
                self._pauses_s.pop(instance_id, None)
                self._opened[key], link = Opened(incarnation, link, creditor), None
                del self._attempts[key]
            else:
                self._give_up(attempt)
            attempt.done.set()
            reports, attempt.reports = attempt.reports, []
        if link is not None:
            link.abort()
        for report in reports:
            report(attempt.why)

    def _made(self, link: TensorLink, attempt: Attempt) -> Use | None:
        instance_id = attempt.member.instance_id
        try:
            return self._make(link, instance_id, lambda: self._silent(instance_id))
        except RuntimeError as error:
            attempt.why = str(error)
            return None

    def _silent(self, instance_id: str) -> None:
        """A creditor let a step wait for its partials until the timeout: nobody waits for it by another link."""
        with self._lock:
            self._pauses_s.setdefault(instance_id, FIRST_PAUSE_S)
            self._end([key for key in self._opened if key[0] == instance_id])

    def _end(self, keys: list[Key]) -> None:
        """With the lock held: a link that was ended is not found again, also if its creditor is wanted again."""
        for key in keys:
            self._opened.pop(key).link.abort()


def _leads_to(member: Member | None, opened: Opened[Use]) -> bool:
    return member is not None and member.incarnation == opened.incarnation
