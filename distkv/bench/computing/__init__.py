"""How fast an engine computes and blocks move: attention, prefill, steps, transfers. Each module is a benchmark."""
