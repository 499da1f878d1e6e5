"""What `distkv bench swaps` measures: two instances while their debts are swapped, or left."""
