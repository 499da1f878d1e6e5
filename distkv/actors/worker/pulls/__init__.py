"""Pulls of rBlocks from peers: a queue and a thread for each source (004 §4.2)."""
