"""Monitors the disk of the store, and calculates the free space for message bodies."""

import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import get_logger
from conclave.store.engine.faults import StoreError, StoreFullError, Watch, file_size, free_bytes, free_text, has_inodes
from conclave.system.reserve import SLACK_BYTES, Reserve

log = get_logger(__name__)

PLENTY_BYTES = 1024 * 1024 * 1024
"""More than all processes can write within PLENTY_SECONDS."""

PLENTY_SECONDS = 0.1
"""If twice PLENTY_BYTES are free, the disk is not checked again for 0.1 seconds."""


class Storage(Watch):
    """Monitors the storage of one server.

    Bodies may use the free space, except the space for a checkpoint of the write-ahead log, and a small reserve. A body
    counts twice: in the log and in the database.
    """

    def __init__(self, database: Path, reserves: list[Reserve], largest: int, health: Health) -> None:
        """``reserves``: the first is that of the database. ``largest``: the size of the largest body in bytes."""
        self._database = database
        self._wal = database.with_name(f"{database.name}-wal")
        self._reserves = reserves
        self._largest = largest
        self._health = health
        self._faults: dict[str, str] = {}
        self._logged: set[str] = set()
        self._reserve_errors: dict[Path, str] = {}
        self._shortage = ""
        self._was_full = False
        self._lacks_inodes = False
        self._plenty_until = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether the last write or the last read failed."""
        return not self._faults.keys().isdisjoint(("write", "read"))

    @property
    def is_readable(self) -> bool:
        """Whether the last read succeeded."""
        return "read" not in self._faults

    def wrote(self, error: StoreError | None) -> None:
        """Record the outcome of a transaction."""
        if isinstance(error, StoreFullError):
            self._was_full = True
        self._record(write=str(error or ""), room=self._shortage)

    def read(self, error: StoreError | None) -> None:
        """Record the outcome of a read."""
        if error or "read" in self._faults:
            self._record(read=str(error or ""))

    def room(self) -> float:
        """Return the free space for bodies in bytes; 0 if it is less than the largest body.

        With plenty of space, the disk is checked only every PLENTY_SECONDS.
        """
        now = time.monotonic()
        if now < self._plenty_until:
            return PLENTY_BYTES
        room = self._check_space()
        if room > 2 * PLENTY_BYTES:
            self._plenty_until = now + PLENTY_SECONDS
        return room

    def _check_space(self) -> float:
        free = free_bytes(self._database.parent)
        missing = self._reserves[0].missing()
        # The missing part of the reserve is kept free instead.
        bodies = (free - file_size(self._wal) - SLACK_BYTES - missing) // 2
        if missing and not self._reserve_errors.get(self._reserves[0].path):
            self._shortage = self._reserve_fault(self._reserves[0])
        elif bodies < self._largest:
            self._shortage = f"{self._database}: there is no room for messages ({free_text(self._database.parent)})"
        else:
            self._shortage = ""
        return 0 if self._shortage else bodies

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return a context for checkpoints of the write-ahead log, which reports errors to health."""
        return self._health.duty(HealthPart.CHECKPOINTS)

    def check(self) -> None:
        """Complete the reserves if possible, and check the free space. Not for the event loop.

        If other programs have filled the disk, part of the reserve is released for small writes.
        """
        for each in self._reserves:
            reason = self._complete(each)
            if reason and reason != self._reserve_errors.get(each.path):  # once, see _record
                log.error("reserve_not_made", path=str(each.path), reason=reason)
            self._reserve_errors[each.path] = reason
        was_full, self._was_full = self._was_full, False
        if was_full and free_bytes(self._database.parent) < SLACK_BYTES:
            with suppress(OSError):  # a run uses it, or there is no reserve
                self._reserves[0].release_slack(self._database)
        self._check_space()
        self._lacks_inodes = not has_inodes(self._database.parent)

    def report(self) -> None:
        """Report the results of ``check`` to health."""
        faults = [self._reserve_fault(each) for each in self._reserves[1:] if each.missing()]
        if self._reserve_errors.get(self._reserves[0].path):
            faults.insert(0, self._reserve_fault(self._reserves[0]))
        if self._lacks_inodes:
            faults.append(
                f"{self._database.parent}: no inode is left, so no file can be created: the next start and runs may"
                " fail; remove files that are not Conclave's"
            )
        self._record(room=self._shortage, work="; ".join(faults))

    def _complete(self, reserve: Reserve) -> str:
        """Complete a reserve if there is space. Return the reason why that failed, or ""."""
        try:
            reserve.refill()
        except BlockingIOError:  # a run uses it: the previous result is still valid
            return self._reserve_errors.get(reserve.path, "")
        except OSError as error:
            return str(error.strerror)
        return ""

    def _reserve_fault(self, reserve: Reserve) -> str:
        """Return the fault of an incomplete reserve."""
        free, needed = free_bytes(reserve.path.parent), reserve.missing() + SLACK_BYTES
        if reason := self._reserve_errors.get(reserve.path):
            return f"{reserve.path}: {reserve.size:,} bytes cannot be reserved for cleanup: {reason}"
        if free < needed:
            cause = f"{needed:,} bytes have to be free, but only {free:,} are"
        else:
            cause = f"it is completed once no run uses it ({free:,} bytes are free)"
        return f"{reserve.path}: the reserve of {reserve.size:,} bytes for cleanup is incomplete: {cause}"

    def _record(self, **faults: str) -> None:
        """Record faults by name; "" clears a fault."""
        before = self._faults
        self._faults = {name: text for name, text in (before | faults).items() if text}
        if self._faults:
            self._health.set_fault(HealthPart.STORAGE, "; ".join(self._faults.values()))
        elif before:
            self._health.clear_fault(HealthPart.STORAGE)
            self._logged.clear()
            log.info("storage_works_again")
        if new := self._faults.keys() - self._logged:
            # Log each fault once: the log may be on the same full disk.
            self._logged |= new
            log.error("storage_fault", **{name: self._faults[name] for name in sorted(new)})
