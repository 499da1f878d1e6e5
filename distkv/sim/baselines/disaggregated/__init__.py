"""Some instances compute prompts, the others decode (DistServe, OSDI 2024; Splitwise, ISCA 2024; KVDirect, paper 004).

A request gets its first token where its prompt is computed, and all others where its keys and values go then. They are
pulled from there, or pushed (004 §4.3).
"""
