"""The evaluation of 001: "Infinite-LLM: Efficient LLM Service for Long Context with DistAttention and Distributed
KVCache"."""
