"""Loads the libraries that read the archive: only once something is read, and with few threads and heaps."""

import os
import tempfile
import threading
from functools import cache

CONCURRENT_READS = 2
"""At most 2 reads of the archive run at the same time; others wait in line.

So reading the archive leaves most of the machine to those who read new messages.
"""

_ENVIRONMENT = {
    "TOKIO_WORKER_THREADS": str(CONCURRENT_READS),
    # The memory of a read goes back to the system after 0.5 s, not after 10 s, and comes from few heaps.
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0,narenas:2",
}
"""Environment variables for the library deltalake, set only while it is loaded."""

_loading = threading.Lock()


def load() -> tuple[type[Exception], ...]:
    """Load the libraries that read the archive, and return the types of their errors."""
    with _loading:  # the first two reads may begin together
        return _loaded()


@cache
def _loaded() -> tuple[type[Exception], ...]:
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it
        from deltalake import DeltaTable  # noqa: PLC0415 - as above
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

        DeltaTable.is_deltatable(tempfile.gettempdir())  # this starts the library's threads, which read the variables
    finally:
        for name in added:
            del os.environ[name]
    return DeltaError, pyarrow.ArrowException, OSError
