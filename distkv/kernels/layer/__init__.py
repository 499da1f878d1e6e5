"""A decoder's layers besides attention: what a model needs of a backend, and torch's way of it."""
