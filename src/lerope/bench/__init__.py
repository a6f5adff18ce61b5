"""How fast this machine trains: its ceilings, our kernels, attention, head and whole steps, and those of peers."""
