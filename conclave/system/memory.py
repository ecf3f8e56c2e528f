"""Lets the memory of large responses go back to the system once they have left."""

import ctypes

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
