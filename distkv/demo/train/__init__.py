"""How the demo model is trained, from a checkout: nothing of the product imports it, and the wheel has none of it."""
