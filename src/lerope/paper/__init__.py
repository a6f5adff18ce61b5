"""The LeRoPE paper (arXiv:2607.10134): the numbers it prints, and what recomputing them gives."""
