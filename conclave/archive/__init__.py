"""Reading the archive, without Spark."""
