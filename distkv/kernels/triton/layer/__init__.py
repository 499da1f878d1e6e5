"""The rest of a decoder layer: linear layers of one row, small operations, norm, rotation and KV write."""
