"""`uccl-ep top`."""
