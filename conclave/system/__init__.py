"""What the operating system is asked for: locks, folders, space, memory, programs that end with us."""
