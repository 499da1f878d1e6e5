"""The native library and its functions, and tensors, frames and sequences as they read them."""
