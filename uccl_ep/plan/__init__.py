"""`uccl-ep plan`: what each rank of a job would use and why, before it runs; the same from a Buffer as it starts."""
