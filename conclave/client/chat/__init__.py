"""The terminal chat: groups that forget on screen. It stands on the client library, and on textual."""
