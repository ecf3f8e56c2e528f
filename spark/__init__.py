"""The cleanup pipeline: decides what goes, and makes it go."""
