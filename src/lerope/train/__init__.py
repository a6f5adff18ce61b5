"""Training: a recipe in, a run directory out; exact, restartable, the same on one CPU, one GPU or many."""
