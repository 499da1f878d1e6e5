"""Tokenizers, detokenizing and chat templates: what rManagers and gateways do with text. Loads no torch."""
