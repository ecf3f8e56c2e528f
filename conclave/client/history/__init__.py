"""What a client keeps of its groups: in a file of its own, and no longer than the policy in force allows."""
