"""Instances that batch continuously over memory of their own, as vLLM does: what baselines are made of whose requests
move or are divided, which the state machines of distkv know nothing of."""
