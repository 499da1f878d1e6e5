"""ZeroMQ sockets under an event loop: how they are set up, read, watched, and kept from one that floods them."""
