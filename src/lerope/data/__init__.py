"""From text to batches: sources, tokenizer, memory-mapped shards, packed rows. Independent of models and torch."""
