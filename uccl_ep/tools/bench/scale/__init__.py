"""Times of whole jobs on published networks, simulated; see README.md."""
