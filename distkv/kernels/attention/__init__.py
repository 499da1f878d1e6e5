"""Attention over paged keys, for all devices: what a call is given, its partials and their merge, and the reference."""
