"""Blocks that go from one process to another, in every way there is."""
