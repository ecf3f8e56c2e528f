"""Detects paths that can be read only once, such as pipes: reading them again would block, or return nothing."""

import stat
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Return whether ``path`` is neither a file nor a folder. Raises OSError if it does not exist."""
    mode = path.stat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
