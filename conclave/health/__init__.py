"""What does not work, for as long as it does not; and who watches the clock and the disk."""
