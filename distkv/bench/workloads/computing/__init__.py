"""Loads of an engine: shapes, steps, models, and who serves beside them."""
