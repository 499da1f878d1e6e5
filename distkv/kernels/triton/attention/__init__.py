"""Attention over paged keys, of few query rows (decode) and of many (prefill)."""
