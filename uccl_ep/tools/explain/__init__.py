"""`uccl-ep explain` and `uccl-ep trace`."""
