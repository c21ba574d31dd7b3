"""High throughput: dispatch and combine of whole batches."""
