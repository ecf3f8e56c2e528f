"""Can anything that was erased still be decrypted, with all that lies here and in the copies?

What was erased has a row nowhere, and no key: what remains of it is ciphertext. So the proof looks at keys alone.
Each file of keys is accounted for: its nodes lead to keys of what there is, and to no others. No run is under way
meanwhile: the run lock is held. What is due but not erased yet is not dead here: a dry run counts it. No body is ever
told, and no key, only where it is. Then an experiment shows that erasing destroys keys.
"""

import sqlite3
from contextlib import closing

from conclave.archive import numbers
from conclave.config.settings import Config
from conclave.proof import keys
from conclave.proof.findings import ProofPart
from conclave.proof.keys import Copies
from conclave.store.engine import schema
from conclave.store.engine.faults import StoreError
from conclave.system import locks
from conclave.system.locks import DatabaseLock


class ProofError(Exception):
    """The keys cannot be examined. The message is one line for the operator."""


def verify(config: Config, wait: locks.Wait, copies: Copies | None = None) -> list[ProofPart]:
    """Examine the keys, and return what was looked at and found.

    ``copies``: backups that are examined too. ``wait`` is called before a wait for a run that is under way. Raises
    ProofError.
    """
    found = [ProofPart("key file")]
    try:
        schema.require_current(config.database, writing=True)
        with closing(DatabaseLock(config.database, locks.CLEANUP)) as lock, lock.hold(wait):
            examined = keys.examine(found[0], config, copies.folder if copies else None)
            if copies:
                found.append(part := ProofPart("copies"))
                keys.examine_copies(part, copies, examined)
    except (numbers.UnreadableError, StoreError, sqlite3.Error) as error:
        raise ProofError(str(error)) from error
    except OSError as error:
        raise ProofError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    return found
