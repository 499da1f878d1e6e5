"""What the programs are made of. While one of them loads, which may take seconds, Ctrl-C ends it as the system does:
there is nothing to clean up, and Python would print a traceback. `exit_codes.run` makes it a KeyboardInterrupt again.
"""

import signal
import sys
from pathlib import Path

PROGRAMS = frozenset({"distkv", "distkv-gmanager", "distkv-instance", "distkv-gateway"})

if Path(sys.argv[0]).name in PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
