"""A conformance suite for DeepEP-like modules: `python -m uccl_ep conformance MODULE`."""
