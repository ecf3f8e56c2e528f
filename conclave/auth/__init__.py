"""Who is calling: passwords, tokens, the use of sessions, the throttle."""
