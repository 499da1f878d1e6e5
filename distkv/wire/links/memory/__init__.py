"""Memory that links carry: pools and mailboxes, the places in them, and copies where both ends are mapped."""
