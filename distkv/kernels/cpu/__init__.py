"""The backends of CPUs: a native library, built for several levels of machines, and torch where there is none."""
