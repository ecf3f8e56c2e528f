"""The cleanup pipeline: decides what is deleted or moves to the archive, and does it."""
