"""Makes one line of the errors of the archive's libraries. Pure."""

import re

_CAUSE = re.compile(r"Caused by: java\.(?:io|nio\.file)\.(?:\w+\.)*(\w+): ([^\n]+)")
"""A cause in an error of Java. If the disk is to blame, the last cause says so."""

_ORNAMENTS = re.compile(r"\x1b\[[0-9;]*m|↳")
"""Colours and arrows in an error of delta-rs."""


def one_line(error: Exception) -> str:
    """Return the text of an error in one line.

    Of Java's errors it is the cause that the disk has given, if any; of delta-rs's all lines; of others the first line.
    """
    text = str(error).strip()
    if causes := _CAUSE.findall(text):
        return f"{causes[-1][0]}: {causes[-1][1].strip()}"
    lines = _ORNAMENTS.sub(" ", text).splitlines()
    if _ORNAMENTS.search(text):
        return ": ".join(" ".join(line.split()) for line in lines if line.strip())
    return lines[0].strip() if lines else type(error).__name__
