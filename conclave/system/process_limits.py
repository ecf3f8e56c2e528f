"""Process limits: raises the limit of open files, and makes malloc return large blocks to the system."""

import ctypes
import resource

MAX_FILES = 65_536
"""The limit of open files is raised to at most 65,536. Some systems allow a billion, which is useless."""

MMAP_THRESHOLD_BYTES = 32 * 1024
"""A block larger than 32 KiB is mapped by itself, and returned to the system as soon as it is freed."""

_M_MMAP_THRESHOLD = -3


def set_mmap_threshold() -> None:
    """Make glibc map each block above MMAP_THRESHOLD_BYTES by itself. Does nothing with other C libraries.

    By default glibc raises this threshold dynamically, up to 32 MiB. Then bodies would share each thread's arena with
    long-lived blocks, and a third of the memory of many large responses would never be returned.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, up to MAX_FILES; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)
