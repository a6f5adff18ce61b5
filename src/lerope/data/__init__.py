"""From text to batches: sources, tokenizer, memory-mapped shards, packed rows. Knows no model and needs no torch."""
