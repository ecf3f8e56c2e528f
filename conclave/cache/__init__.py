"""What the server remembers so that busy requests need not ask the store: exact, or absent."""
