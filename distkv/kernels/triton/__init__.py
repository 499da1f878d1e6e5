"""DistAttention on GPUs, in Triton. Only this package imports Triton, which is an optional dependency."""
