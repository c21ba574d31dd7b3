"""device_check: checks and measures everything on a machine with one GPU; see bench/README.md."""
