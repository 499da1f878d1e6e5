"""What `distkv bench recall` is made of: its documents, what was measured of them already, and distkv's own answers."""
