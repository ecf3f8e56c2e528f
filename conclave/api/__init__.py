"""The endpoints: one module a resource. A handler validates, calls the store, returns."""
