"""What users can do: one module a resource, one function a transaction, which authorises, changes and announces.

A function takes the store's connection, then the context where it goes by any, then who asks for what. Handlers run it
by ``api/acting.py``; whoever else has a connection may call it in a transaction of their own. What a function of the
store does wholly by itself is offered here under its name, or that of the action.
"""
