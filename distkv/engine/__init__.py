"""One worker's computation: model, weights, KV memory, steps, and micro-attention for peers. Start with `step`."""
