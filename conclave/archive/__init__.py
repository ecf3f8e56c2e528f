"""Reads the archive without Spark, for clients and for operators."""
