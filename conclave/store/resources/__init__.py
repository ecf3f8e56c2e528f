"""The resources in the hot store, one module for each."""
