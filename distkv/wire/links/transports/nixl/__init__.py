"""Tensor links whose reads are READ lists of NIXL: over RDMA, between GPUs, by CMA within a host, or emulated over TCP.

`bindings` is the library, `agent` one of its agents, `serving` the end that is read from, `reading` the one that
reads, and `pool` puts them together.
"""
