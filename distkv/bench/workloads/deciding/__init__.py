"""Loads of state machines and of a gManager."""
