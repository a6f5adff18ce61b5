"""The ground floor: what a run is, and how its files are read and written. No torch, no numpy."""
