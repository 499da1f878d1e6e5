"""The OpenAI-compatible HTTP API of a cluster: endpoints, prompts, metrics. Start with `process`."""
