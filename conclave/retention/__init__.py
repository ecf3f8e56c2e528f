"""Retention of messages: policies, visibility, erasure, and explanations of them."""
