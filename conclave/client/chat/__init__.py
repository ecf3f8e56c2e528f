"""The terminal chat: groups that forget on screen. It stands on the client library, and on textual."""

import os

for _name in ("TEXTUAL", "TEXTUAL_LOG"):
    os.environ.pop(_name, None)  # textual would log every key and every field, passwords too; it reads them once
