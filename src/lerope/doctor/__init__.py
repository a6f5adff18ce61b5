"""Does everything that could run on a machine run, and right?"""
