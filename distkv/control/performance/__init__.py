"""What steps, loans and transfers will take, by what was measured: the performance model of 001 §5.3."""
