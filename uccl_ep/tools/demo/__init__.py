"""The demo: a small Mixture-of-Experts language model trained with expert parallelism, checked against one process."""
