"""How long a message lives: the policy, what is hidden from whom, what may be erased, and why."""
