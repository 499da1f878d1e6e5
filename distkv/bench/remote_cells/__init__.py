"""What `distkv bench remote` measures: decode steps with keys at creditors, and the layers of these steps."""
