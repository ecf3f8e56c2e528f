"""What users and operators can do: one module for each resource, one function for each transaction.

An action authorises (``authorisation.py``), refuses, changes and announces. It takes the store's connection first,
then the context if it needs it, then who asks, and for what. Handlers run actions by ``api/action_runner.py``. Other
code that has a connection may call them in a transaction of its own. Where one function of the store is the whole
action, it is offered here under its own name or that of the action.
"""
