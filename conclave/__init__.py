"""A group messaging server whose groups forget on time, and can prove it."""

__version__ = "0.1.0"
