"""Verifies that erased messages cannot be decrypted with the keys and copies of this server."""
