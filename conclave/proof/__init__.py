"""Shows, while the server runs, that nothing that was erased is readable in any of its files."""
