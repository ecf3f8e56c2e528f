"""The chat for browsers, as it was built from ``web/``, and how its files are served."""
