"""What the papers compare with, as formulas of the same hardware: no cluster is simulated for these."""
