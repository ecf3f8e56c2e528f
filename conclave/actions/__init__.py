"""The actions of users and operators: one module per resource, one function per transaction.

An action authorises the caller (``authorisation.py``), validates, changes the store and announces events. Its
parameters are the connection, the context if needed, the caller, and the request. Handlers run actions by
``api/action_runner.py``; other code may call them in its own transaction. If a single function of the store is the
whole action, the module re-exports it.
"""
