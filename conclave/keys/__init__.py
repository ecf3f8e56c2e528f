"""A key for each message: what is erased here cannot be read in a copy either. Nothing here knows of a database."""
