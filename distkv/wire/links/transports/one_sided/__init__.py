"""What transports share whose reads are done by a library beside the socket."""
