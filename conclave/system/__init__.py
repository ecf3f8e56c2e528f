"""What the operating system is asked for: locks, folders, space, memory, processes that end with us."""
