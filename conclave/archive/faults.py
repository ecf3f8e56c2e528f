"""Formats errors of the archive's libraries as one line. Pure functions."""

import re

ADVICE = ": see docs/operations/archive.md#a-damaged-file"
"""Appended to errors about damaged files. The page describes the remedy."""

_CAUSE = re.compile(r"Caused by: (?:java\.(?:io|nio\.file)|org\.apache\.parquet)\.(?:\w+\.)*(\w+): ([^\n]+)")
"""A cause in a Java error. The last cause names a disk error or a damaged file."""

_DAMAGED = "page integrity"
"""Part of Parquet's error for a page with a wrong checksum."""

_JAVA_ERROR = re.compile(r"An error occurred while calling \S+\n: (?:[\w.$]+: )?([^\n]+)")
"""The start of a py4j error: the call, then the class and text of the Java error."""

_UNREAD = "FAILED_READ_FILE"
"""Spark's error class for a file that it could not read."""

_ORNAMENTS = re.compile(r"\x1b\[[0-9;]*m|↳")
"""Colours and arrows in an error of delta-rs."""


class UnreadableArchiveError(Exception):
    """The archive, or a file of it, cannot be read. The message is one line for the operator."""


def one_line(error: Exception) -> str:
    """Return the text of an error as one line.

    For a Java error: its cause if that is a disk error or a damaged file, otherwise its first line. Both if a file
    could not be read, since the first line names the file. For delta-rs: all lines. For other errors: the first line.
    """
    text = str(error).strip()
    java, causes = _JAVA_ERROR.match(text), _CAUSE.findall(text)
    parts = [java[1].strip()] if java and (not causes or _UNREAD in java[1]) else []
    if causes:
        parts.append(f"{causes[-1][0]}: {causes[-1][1].strip()}")
    if not parts:
        lines = _ORNAMENTS.sub(" ", text).splitlines()
        if _ORNAMENTS.search(text):
            parts = [" ".join(line.split()) for line in lines if line.strip()]
        else:
            parts = [lines[0].strip() if lines else type(error).__name__]
    line = ": ".join(parts)
    return line + ADVICE if _DAMAGED in line else line
