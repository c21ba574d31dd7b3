"""Expert parallelism through uccl_ep in models that are not ours: code to read and to copy. See README.md."""
