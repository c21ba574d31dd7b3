"""How ranks meet, and which of them share a node."""
