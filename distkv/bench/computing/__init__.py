"""How fast an engine computes: attention, prefill, steps. Each module is a benchmark."""
