"""The process that serves: listening, routing, background duties, the cleanup worker."""
