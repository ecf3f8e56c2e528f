"""The HTTP endpoints: one module for each resource.

A handler reads the request, runs an action and replies.
"""
