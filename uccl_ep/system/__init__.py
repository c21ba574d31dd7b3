"""What the operating system and its drivers say and allow."""
