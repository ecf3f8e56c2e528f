"""Operating system services: locks, folders, disk space, memory limits, signals, child processes."""
