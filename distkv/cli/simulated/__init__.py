"""What `distkv sim` is given, and how it says what it found."""
