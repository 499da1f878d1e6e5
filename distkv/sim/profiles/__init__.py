"""Profiles of GPUs that nobody has to own: what they do with a model, by a roofline of cited figures.

`built_in` is the way in. Nothing here was measured by us; each figure has its source beside it, and none was chosen by
what a simulation makes of it.
"""
