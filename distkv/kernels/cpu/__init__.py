"""The CPU backends: native code for several levels of machines, and torch where there is none."""
