"""The OpenAI-compatible front door of a cluster: HTTP, tokenizing, chat templates, metrics. Start with `server`."""
