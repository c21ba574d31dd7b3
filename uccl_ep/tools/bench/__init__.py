"""Measurements: ours and a peer in the same run, interleaved, as a ratio; results as JSON with a fingerprint."""
