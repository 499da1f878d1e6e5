"""The datasets of the papers, drawn again: the 18 of 000 Table 2, and the 9 traces of 001 Table 1.

The requests themselves were never published. `dataset` draws others by what the tables print of them.
"""
