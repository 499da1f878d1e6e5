"""What a daemon started ends with it."""

from __future__ import annotations

import os
import select
import subprocess
import sys

BUSY = "from distkv.process_priority import begin_helper; begin_helper(); print('busy', flush=True)\nwhile True: pass"
DAEMON = f"""import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}])
print(child.pid, flush=True)
child.wait()"""


def test_a_helper_that_is_busy_ends_with_its_daemon() -> None:
    """It leads a session of its own, so that who kills the daemon's group does not reach it."""
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, start_new_session=True) as daemon:
        assert daemon.stdout is not None
        helper = os.pidfd_open(int(daemon.stdout.readline()))
        try:
            assert daemon.stdout.readline() == b"busy\n"
            daemon.kill()
            assert select.select([helper], [], [], 20.0)[0], "it goes on"
        finally:
            os.close(helper)
