"""Keeps copies of the vault up to date: folders on other disks that have its key file and its ledger.

What is newer than the vault is never replaced. A disk that does not answer holds no process up for longer than a bound.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from conclave.config.settings import KEYS, LEDGER
from conclave.failpoints import reach
from conclave.keys import copying
from conclave.keys.copying import Known
from conclave.keys.file import Head, KeyFileError, head_of, told
from conclave.keys.store import KeyStore
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from conclave.system.answering import within


class VaultError(StoreError):
    """A copy of the vault cannot be brought up to date, or read. The message is a line for operators."""


def renew(keys: KeyStore, ledger: Path, copy: Path) -> None:
    """Bring a copy up to date, and make its folder if that is missing. Raises VaultError.

    ``ledger``: of the vault. What the copy has already is not written.
    """
    try:
        keys.refresh()
        target = copy / KEYS
        with told(copy):
            within(copying.ANSWER_SECONDS, copy, partial(copy.mkdir, mode=0o700, exist_ok=True))
        if not copying.is_current(keys, target):
            keys.copy(target)
            reach("vault.keys_copied")
        with told(copy):
            within(copying.whole_seconds(ledger), copy / LEDGER, partial(_copy_ledger, keys.path, ledger, copy))
        reach("vault.ledger_copied")
    except (KeyFileError, StoreError) as error:
        raise VaultError(f"vault.copies: {error}") from error


def _copy_ledger(keys_path: Path, ledger: Path, copy: Path) -> None:
    """Copy the ledger as it is once no other process writes copies there."""
    with copying.none_written(keys_path, copy / LEDGER):
        book.copy(ledger, copy / LEDGER)


def renew_all(keys: KeyStore, ledger: Path, copies: Iterable[Path]) -> None:
    """Renew each copy, whatever becomes of the others: one disk that is away, or hangs, keeps no other copy old.

    Raises VaultError, which names all that failed.
    """
    failed = []
    for each in copies:
        try:
            renew(keys, ledger, each)
        except VaultError as error:
            failed.append(str(error))
    if failed:
        raise VaultError("; ".join(dict.fromkeys(failed)))


def fault_of(copy: Path, keys: Known, ledger: Path) -> str:
    """Return in one line why a copy would not do if the vault were lost now; "" if it would.

    ``keys`` and ``ledger``: of the vault.
    """
    try:
        found, tip = within(copying.ANSWER_SECONDS, copy, partial(_look, copy))
    except (KeyFileError, StoreError) as error:
        return str(error)
    except OSError as error:
        return f"{copy}: {error.strerror}"
    if found is None:
        return f"{copy}: there is no copy"
    if found.keys_id != keys.keys_id:
        return f"{copy}: is a copy of another vault"
    own = None
    with suppress(StoreError):  # health tells of the ledger itself
        own = book.tip(ledger)
    if found.serial < keys.serial or (own and (tip is None or tip[1] < own[1])):
        return f"{copy}: is late: it lacks the newest changes"
    return ""


def _look(copy: Path) -> tuple[Head | None, tuple[str, int] | None]:
    return head_of(copy / KEYS), book.tip_of_copy(copy / LEDGER)
