"""Tells files from what can be read only once, as a pipe: who reads that again waits for ever, or finds nothing."""

import stat
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Tell whether ``path`` is neither a file nor a folder. Raises OSError if nothing is there."""
    mode = path.stat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
