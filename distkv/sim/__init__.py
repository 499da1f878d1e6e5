"""A cluster in one thread: real state machines, workers without tensors, one network and one clock.

`SimCluster` is the way in. Nothing here reads a clock or does I/O; a seed makes a run repeatable.
"""
