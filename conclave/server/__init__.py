"""The server process: listening, routing, background duties, the cleanup worker."""
