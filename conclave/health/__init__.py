"""The health of the server: what does not work now, and the watches over the clock and the disk."""
