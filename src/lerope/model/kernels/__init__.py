"""The fast layer: kernels, and the modules that replace plain ones (`layers`, by `Transformer.use_kernel`).

Whatever ends in `_obstacle` says in words why something cannot run, and returns None if it can.
"""
