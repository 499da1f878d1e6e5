"""Attention of other libraries over our pools, where they are installed: to be measured beside our kernels."""
