"""Attention of other libraries over our pools, where they are installed: to serve with, and to measure beside ours."""
