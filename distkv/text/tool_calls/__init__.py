"""Tool calls in the text that models write: one parser for each way in which families of models write them.

Parsers are incremental and pure: whatever pieces a text comes in, what they make of it is the same.
"""
