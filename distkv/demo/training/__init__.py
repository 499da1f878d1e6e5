"""How the demo model is trained; nothing of the product imports it."""
