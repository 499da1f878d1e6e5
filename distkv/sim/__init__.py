"""A cluster in one thread: real state machines, workers without tensors, one network and one clock.

`simulate` of `run.py` is the way in for a trace, `SimCluster` of `drawn/` for a test. Nothing here reads a clock or
does I/O; a seed makes a run repeatable.
"""
