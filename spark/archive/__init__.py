"""What cleanup does in the archive."""
