"""Having memory go back to the system once large responses have left."""

import ctypes

MAPPED_BYTES = 32 * 1024
"""What is larger gets pages of its own, which go back as soon as it is freed."""

_M_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """Have the C library map all that is larger than MAPPED_BYTES by itself; libraries other than glibc are left alone.

    By default glibc raises its bound with what is freed, to 32 MiB. Bodies would lie among what stays, in an arena of
    each thread, and of the memory of many large responses a third would stay taken for good.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
