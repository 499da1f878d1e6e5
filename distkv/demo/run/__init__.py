"""`distkv demo`: a document longer than any pool, questions about it, and what the terminal shows meanwhile."""
