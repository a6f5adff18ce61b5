"""The ladder's transformer: configuration, initial weights, attention with document masks, accounting."""
