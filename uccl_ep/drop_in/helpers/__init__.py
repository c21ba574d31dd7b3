"""What `deep_ep.utils` offers besides the calls: DeepEP's own tests and others' benchmarks import it."""
