"""Makes one line of the errors of the archive's libraries. Pure."""

import re

ADVICE = ": see docs/operations/archive.md#a-damaged-file"
"""Where it says what to do about a file that is not as it was written."""

_CAUSE = re.compile(r"Caused by: (?:java\.(?:io|nio\.file)|org\.apache\.parquet)\.(?:\w+\.)*(\w+): ([^\n]+)")
"""A cause in an error of Java. If the disk is to blame, or a file is damaged, the last cause says so."""

_DAMAGED = "page integrity"
"""How Parquet calls it if a page of a file does not have its checksum."""

_OF_JAVA = re.compile(r"An error occurred while calling \S+\n: (?:[\w.$]+: )?([^\n]+)")
"""How py4j begins to tell of an error of Java: what was called, then the error's class and text."""

_UNREAD = "FAILED_READ_FILE"
"""How Spark calls it if it could not read a file."""

_ORNAMENTS = re.compile(r"\x1b\[[0-9;]*m|↳")
"""Colours and arrows in an error of delta-rs."""


def one_line(error: Exception) -> str:
    """Return the text of an error in one line.

    Of Java's errors it is the cause that the disk or a damaged file has given, if any, or else their own first line; if
    a file could not be read, both, since the first line names it. Of delta-rs's it is all lines, of others the first.
    """
    text = str(error).strip()
    said, causes = _OF_JAVA.match(text), _CAUSE.findall(text)
    told = [said[1].strip()] if said and (not causes or _UNREAD in said[1]) else []
    if causes:
        told.append(f"{causes[-1][0]}: {causes[-1][1].strip()}")
    if not told:
        lines = _ORNAMENTS.sub(" ", text).splitlines()
        if _ORNAMENTS.search(text):
            told = [" ".join(line.split()) for line in lines if line.strip()]
        else:
            told = [lines[0].strip() if lines else type(error).__name__]
    line = ": ".join(told)
    return line + ADVICE if _DAMAGED in line else line
