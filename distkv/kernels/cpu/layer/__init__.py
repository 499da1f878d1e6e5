"""A decoder's layers by the native library."""
