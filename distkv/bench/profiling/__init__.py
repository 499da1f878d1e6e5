"""Measures what the running hardware does with a model, and how well the performance model predicts it (001 §5.3)."""
