"""What no paper shows: how far contexts reach by the number of instances, what sharing does to imbalance, and what
failures cost."""
