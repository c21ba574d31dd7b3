"""Counts of writes, bytes and memory, ours and upstream's, without running anything; README.md has the rules."""
