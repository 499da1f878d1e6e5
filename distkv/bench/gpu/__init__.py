"""What benchmarks do on GPUs."""
