"""Figures of KVDirect (004): prompts computed by some instances, tokens by others."""
