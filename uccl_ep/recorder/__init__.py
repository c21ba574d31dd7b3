"""The flight recorder: what a rank was doing, kept while it runs, written down when a peer fails, told by explain."""
