"""The schemas of request and response messages, named as in the protocol."""
