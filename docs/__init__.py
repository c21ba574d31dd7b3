"""The documentation site: pages, what generates parts of them, and the pictures of it."""
