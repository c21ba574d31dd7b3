"""A rank's life: start, proxy, faults, goodbye."""
