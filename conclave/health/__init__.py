"""The health of the server: current faults, and monitoring of the clock and the disk."""
