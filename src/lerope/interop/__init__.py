"""The bridge: Hugging Face models in, serving engines out."""
