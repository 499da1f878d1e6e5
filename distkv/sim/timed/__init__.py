"""A cluster whose time is that of events: real state machines, engines and links that take the time a profile says."""
