"""The settings: one module for each section."""
