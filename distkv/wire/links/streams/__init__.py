"""Frames, blocks and file descriptors over stream sockets."""
