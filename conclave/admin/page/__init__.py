"""The operators' page: the state of the server, and actions."""
