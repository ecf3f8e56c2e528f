"""What the hot store knows, a module a resource."""
