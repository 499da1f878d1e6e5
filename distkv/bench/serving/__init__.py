"""Whole clusters: traces, many requests at once, clients that attack. Each module is a benchmark."""
