"""The settings, a section a module."""
