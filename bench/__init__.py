"""Measurements of this repository; see README.md. Not part of the wheel."""
