"""Who is still there, who is lost, and whose fault it is."""
