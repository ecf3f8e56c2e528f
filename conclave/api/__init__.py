"""The HTTP endpoints: one module for each resource.

A handler parses the request, runs an action, and writes the response.
"""
