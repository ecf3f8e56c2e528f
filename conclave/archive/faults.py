"""What the archive's libraries say when something fails, in one line. Pure."""

import re

_CAUSE = re.compile(r"Caused by: java\.(?:io|nio\.file)\.(?:\w+\.)*(\w+): ([^\n]+)")
"""Of Java: where the disk is to blame, it is the last that is told."""

_ORNAMENTS = re.compile(r"\x1b\[[0-9;]*m|↳")
"""Of delta-rs."""


def one_line(error: Exception) -> str:
    """Return what an error says: all of what delta-rs says, of Java what the disk has said, or the first line."""
    text = str(error).strip()
    if causes := _CAUSE.findall(text):
        return f"{causes[-1][0]}: {causes[-1][1].strip()}"
    lines = _ORNAMENTS.sub(" ", text).splitlines()
    if _ORNAMENTS.search(text):
        return ": ".join(" ".join(line.split()) for line in lines if line.strip())
    return lines[0].strip() if lines else type(error).__name__
