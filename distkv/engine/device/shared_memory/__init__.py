"""Memory of a GPU that other processes of the host map: CUDA's virtual memory management."""
