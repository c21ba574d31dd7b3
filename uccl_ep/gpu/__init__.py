"""GPUs: what is asked of one (`driver`), how kernels get onto it, and how a rank lives on it. Imports without a GPU."""
