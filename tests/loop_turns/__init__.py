"""How long callbacks hold the event loops of real processes: `python -m tests.loop_turns`."""
