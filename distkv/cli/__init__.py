"""What the programs are made of. Until one of them has something to clean up, Ctrl-C ends it as the system does: they
load for a second or more, Python would print a traceback, and where types are looked at it would drop the interrupt.
`signals_interrupt` makes it a KeyboardInterrupt, and daemons stop in good order once they run. For the first process of
a container the system drops what nobody handles; it ends by itself.
"""

import os
import signal
import sys
from pathlib import Path

PROGRAMS = frozenset({"distkv", "distkv-gmanager", "distkv-instance", "distkv-gateway"})

if Path(sys.argv[0]).name in PROGRAMS:
    if os.getpid() == 1:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, lambda signum, _: os._exit(128 + signum))
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
