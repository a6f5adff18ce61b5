"""The fast layer: kernels, and the modules that take the place of plain ones (`layers`, by `Transformer.use_kernel`).

Whatever ends in `_obstacle` says in words why something cannot run, and gives None if it can.
"""
