"""Tensor links whose reads are one-sided UCX gets: over RDMA, between GPUs, by CMA within a host, or emulated over TCP.

Read `library` for what is called, `owner` for the end that is read from, `reader` for the one that reads.
"""
