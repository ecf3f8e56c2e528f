"""What operators and users look at: figures and lists made from many tables."""
