"""The calls of the protocol, a module a resource."""
