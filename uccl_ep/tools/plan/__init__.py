"""`uccl-ep plan`."""
