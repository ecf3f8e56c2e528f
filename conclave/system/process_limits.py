"""What the server asks of the system for its process: many open files, and that freed memory is given back."""

import ctypes
import resource

MAX_FILES = 65_536
"""The limit of open files is raised to at most 65,536. A thousand million, as on some systems, is of no use."""

MAPPED_BYTES = 32 * 1024
"""A block larger than 32 KiB gets pages of its own, which go back as soon as it is freed."""

_M_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """Make glibc map each block above MAPPED_BYTES by itself. Other C libraries are left alone.

    By default glibc raises this bound with the blocks that are freed, up to 32 MiB. Then bodies would lie among blocks
    that stay, in an arena of each thread. A third of the memory of many large responses would stay taken for good.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def raise_file_limit() -> int:
    """Let this process have as many files open as the system allows, up to MAX_FILES; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
