"""What benchmarks call."""
