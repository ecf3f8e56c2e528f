"""The endpoints, HTTP only: one module a resource. A handler reads the request, has an action done, replies."""
