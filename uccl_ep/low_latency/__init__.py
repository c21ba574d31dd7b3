"""Low latency: dispatch and combine of decoding."""
