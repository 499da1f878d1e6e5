"""DistAttention between two devices of one host by way of memory that both reach: no host in the path of a layer."""
