"""`uccl-ep check`: what the network between two hosts carries, and what speaks against it."""
