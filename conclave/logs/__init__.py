"""The log: how it is set up, what its lines look like, where they go."""
