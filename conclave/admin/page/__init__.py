"""The operators' page: how the server is, at a glance, and what an operator may do about it."""
