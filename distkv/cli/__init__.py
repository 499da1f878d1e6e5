"""What the programs are made of. Until one of them has something to clean up, Ctrl-C ends it as the system does: they
load for a second or more, Python would print a traceback, and where types are looked at it would drop the interrupt.
`signals_interrupt` makes it a KeyboardInterrupt, and daemons stop in good order once they run.
"""

import signal
import sys
from pathlib import Path

PROGRAMS = frozenset({"distkv", "distkv-gmanager", "distkv-instance", "distkv-gateway"})

if Path(sys.argv[0]).name in PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
