"""One short example for each way to start ranks; see README.md."""
