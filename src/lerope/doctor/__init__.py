"""Whether everything that can run on a machine runs correctly."""
