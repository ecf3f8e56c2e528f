"""How long a message lives. Pure functions."""
