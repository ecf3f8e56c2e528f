"""Logging: setup, formatting and non-blocking output."""
