"""Configs of the decode kernels, measured on a GPU and kept between runs."""
