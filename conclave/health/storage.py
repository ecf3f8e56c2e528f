"""Watches the disk under the store: a part of health, and the room that is left for bodies."""

import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import get_logger
from conclave.store.engine.faults import StoreError, StoreFullError, Watch, file_size, free_bytes, free_text, has_inodes
from conclave.system.reserve import SLACK_BYTES, Reserve

log = get_logger(__name__)

PLENTY_BYTES = 1024 * 1024 * 1024
"""1 GiB is more than can be written within PLENTY_SECONDS, by this server and by others."""

PLENTY_SECONDS = 0.1
"""A disk with twice PLENTY_BYTES of room is not asked again for 0.1 seconds: each transaction would ask it."""


class Storage(Watch):
    """Watches the storage of one server.

    Bodies may take up the free space, except what the write-ahead log needs when it is copied to the database, and a
    little for small things. A body takes its room twice, in the log and in the database.
    """

    def __init__(self, database: Path, reserves: list[Reserve], largest: int, health: Health) -> None:
        """``reserves``: the first is the one beside the database. ``largest``: the most bytes of one body."""
        self._database = database
        self._wal = database.with_name(f"{database.name}-wal")
        self._reserves = reserves
        self._largest = largest
        self._health = health
        self._faults: dict[str, str] = {}
        self._logged: set[str] = set()
        self._not_kept: dict[Path, str] = {}
        self._shortage = ""
        self._was_full = False
        self._lacks_inodes = False
        self._plenty_until = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether a write or a read has failed, and none has succeeded since."""
        return not self._faults.keys().isdisjoint(("write", "read"))

    @property
    def is_readable(self) -> bool:
        """Whether the last read has worked."""
        return "read" not in self._faults

    def wrote(self, error: StoreError | None) -> None:
        """Note what became of a transaction."""
        if isinstance(error, StoreFullError):
            self._was_full = True
        self._note(write=str(error or ""), room=self._shortage)

    def read(self, error: StoreError | None) -> None:
        """Note what became of a read."""
        if error or "read" in self._faults:
            self._note(read=str(error or ""))

    def room(self) -> float:
        """Return how many bytes of bodies there is room for; 0 if the largest body has no room.

        While there is plenty, the disk is asked again only after PLENTY_SECONDS.
        """
        now = time.monotonic()
        if now < self._plenty_until:
            return PLENTY_BYTES
        room = self._look_for_room()
        if room > 2 * PLENTY_BYTES:
            self._plenty_until = now + PLENTY_SECONDS
        return room

    def _look_for_room(self) -> float:
        free = free_bytes(self._database.parent)
        missing = self._reserves[0].missing()
        # The part of the reserve that is not in the file is left free instead.
        bodies = (free - file_size(self._wal) - SLACK_BYTES - missing) // 2
        if missing and not self._not_kept.get(self._reserves[0].path):
            self._shortage = self._missing(self._reserves[0])
        elif bodies < self._largest:
            self._shortage = f"{self._database}: there is no room for messages ({free_text(self._database.parent)})"
        else:
            self._shortage = ""
        return 0 if self._shortage else bodies

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return a context in which to shorten the write-ahead log. Health learns whether that works."""
        return self._health.duty(HealthPart.CHECKPOINTS)

    def look(self) -> None:
        """Complete the reserves, if that is possible, and look what room there is. Not for the event loop.

        If other programs have filled the disk, a little of the reserve is given up for small things.
        """
        for each in self._reserves:
            reason = self._keep(each)
            if reason and reason != self._not_kept.get(each.path):  # once: see _note
                log.error("reserve_not_made", path=str(each.path), reason=reason)
            self._not_kept[each.path] = reason
        was_full, self._was_full = self._was_full, False
        if was_full and free_bytes(self._database.parent) < SLACK_BYTES:
            with suppress(OSError):  # a run has it and frees all of it, or there is none
                self._reserves[0].release_slack(self._database)
        self._look_for_room()
        self._lacks_inodes = not has_inodes(self._database.parent)

    def report(self) -> None:
        """Tell health what ``look`` has found."""
        found = [self._missing(each) for each in self._reserves[1:] if each.missing()]
        if self._not_kept.get(self._reserves[0].path):
            found.insert(0, self._missing(self._reserves[0]))
        if self._lacks_inodes:
            found.append(
                f"{self._database.parent}: no inode is left, so no file can be made: the next start would fail, and so"
                " may runs; remove files that are not Conclave's"
            )
        self._note(room=self._shortage, work="; ".join(found))

    def _keep(self, reserve: Reserve) -> str:
        """Complete a reserve, if there is room. Return why it cannot be kept at all, or "" if it can."""
        try:
            reserve.refill()
        except BlockingIOError:  # a run works in it: what was known before still counts
            return self._not_kept.get(reserve.path, "")
        except OSError as error:
            return str(error.strerror)
        return ""

    def _missing(self, reserve: Reserve) -> str:
        """Return what is wrong with a reserve that is not complete."""
        free, needed = free_bytes(reserve.path.parent), reserve.missing() + SLACK_BYTES
        if reason := self._not_kept.get(reserve.path):
            return f"{reserve.path}: {reserve.size:,} bytes cannot be kept for cleanup: {reason}"
        if free < needed:
            why = f", for which {needed:,} have to be free, but only {free:,} are"
        else:
            why = f" again as soon as no run works in them ({free:,} bytes are free)"
        return f"{reserve.path}: {reserve.size:,} bytes are to be kept for cleanup{why}"

    def _note(self, **found: str) -> None:
        """Note what is wrong, by the name of what does not work; "" means that it works."""
        before = self._faults
        self._faults = {name: text for name, text in (before | found).items() if text}
        if self._faults:
            self._health.fault(HealthPart.STORAGE, "; ".join(self._faults.values()))
        elif before:
            self._health.mend(HealthPart.STORAGE)
            self._logged.clear()
            log.info("storage_works_again")
        if new := self._faults.keys() - self._logged:
            # Log each fault once: a log on the same disk must not take what is left of it.
            self._logged |= new
            log.error("storage_fault", **{name: self._faults[name] for name in sorted(new)})
