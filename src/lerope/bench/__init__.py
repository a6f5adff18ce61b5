"""How fast this machine trains: its ceilings, our kernels, attention, head and whole steps, and peers'."""
