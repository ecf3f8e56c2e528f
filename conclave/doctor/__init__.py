"""The checks of `conclave doctor`: machine, files, database. They change nothing."""
