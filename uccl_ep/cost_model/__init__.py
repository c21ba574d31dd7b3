"""What a routing costs on a wire, counted without running it."""
