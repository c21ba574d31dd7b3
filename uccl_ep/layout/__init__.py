"""What lies where in a rank's memory."""
