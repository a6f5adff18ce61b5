"""The LeRoPE paper (arXiv:2607.10134): the numbers that it prints, and what comes out when they are recomputed."""
