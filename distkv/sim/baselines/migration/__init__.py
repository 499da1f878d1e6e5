"""Live migration of whole requests, as Llumnix (Sun et al., OSDI 2024) does it; constants and details are those of its
published code (github.com/AlibabaPAI/llumnix) where the paper leaves them open."""
