"""The rotary library: frequencies, encodings, rotation, extension, optimisation. Imports torch alone."""
