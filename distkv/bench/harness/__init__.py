"""What all benchmarks share: alternation, the report with its table, JSON and plot, and the command line."""
