"""Training: a recipe in, a run directory out; exact, resumable, the same on one CPU, one GPU or many."""
