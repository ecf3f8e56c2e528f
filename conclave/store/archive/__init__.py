"""What the hot store knows of the archive."""
