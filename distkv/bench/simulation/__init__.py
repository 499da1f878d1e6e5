"""What simulations say, in figures and pictures."""
