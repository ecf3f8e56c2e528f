"""The calls of the protocol, a module for each resource."""
