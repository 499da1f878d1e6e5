"""The processes of a simulated cluster: the real state machines, and what must hold of them after every event."""
