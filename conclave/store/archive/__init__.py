"""What the database knows of the archive: where messages are, what moves, what moved."""
