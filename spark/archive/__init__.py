"""The archive's part of a cleanup run: moves messages there, and deletes them there."""
