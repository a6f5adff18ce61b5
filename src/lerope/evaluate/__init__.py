"""Measurements of a trained run: losses, needles, lengths beyond training."""
