"""What decisions cost, and what they are worth in modelled time. Each module is a benchmark."""
