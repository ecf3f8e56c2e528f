"""The terminal chat, built on the client library and textual."""

import os

for _name in ("TEXTUAL", "TEXTUAL_LOG"):
    os.environ.pop(_name, None)  # textual would log all input, including passwords; it reads them once
