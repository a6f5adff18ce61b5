"""The rotary library: frequencies, encodings, rotation, extension, optimisation. Imports only torch."""
