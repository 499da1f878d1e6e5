"""The evaluation of 000: "Infinite-LLM: Efficient LLM Service for Long Context with DistAttention and Distributed
KVCache", in which the system is called DistKV-LLM."""
