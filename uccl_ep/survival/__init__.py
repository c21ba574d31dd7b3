"""Going on without the ranks that are lost."""
