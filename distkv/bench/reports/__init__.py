"""What engines are predicted by, what was measured drawn again, and two versions side by side."""
