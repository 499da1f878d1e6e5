"""Where cores are busy, event loops go before what computes."""

from __future__ import annotations

import os

import psutil

from distkv.process_priority import STEP


def test_daemons_go_before_their_workers(three):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    first = own - STEP if os.geteuid() == 0 else own
    # One that another test killed is listed for a while.
    living = [instance for instance in three.status()["instances"] if instance["state"] == "ready"]
    daemons = [psutil.Process(instance["pid"]) for instance in living]
    assert len(daemons) == 3
    for daemon in [*daemons, psutil.Process(three.gmanager.pid)]:
        # More than that takes a right; a worker goes behind its daemon without any.
        assert daemon.nice() in (first, own)
    for daemon in daemons:
        (worker,) = [child for child in daemon.children() if "distkv.actors.worker.start" in child.cmdline()]
        assert worker.nice() == min(19, daemon.nice() + STEP)
