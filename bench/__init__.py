"""Measurements: ``python -m bench`` does all, ``python -m bench NAME`` one part. See docs/performance.md."""
