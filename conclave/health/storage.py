"""How the disk under the store fares: part of health, and the word on whether there is room for bodies."""

from contextlib import AbstractContextManager, suppress
from pathlib import Path

from conclave.health.parts import Health, HealthPart
from conclave.logs import get_logger
from conclave.store.faults import StoreError, StoreFullError, Watch, file_size, free_bytes
from conclave.system.reserve import SLACK_BYTES, Reserve

log = get_logger(__name__)


class Storage(Watch):
    """Watches the store of one server.

    Bodies may take up what is free but for what the write-ahead log still has to be copied to, and a little that is
    left for small things. A body takes its room twice, in the log and in the database.
    """

    def __init__(self, database: Path, reserves: list[Reserve], largest: int, health: Health) -> None:
        """``reserves``: the first is the one beside the database; ``largest``: the bytes that a body may have."""
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

    @property
    def has_failed(self) -> bool:
        """Whether a write or a read has failed, and none has succeeded since."""
        return not self._faults.keys().isdisjoint(("write", "read"))

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
        """Return how many bytes of bodies there is room for; too little for the largest is none."""
        free = free_bytes(self._database.parent)
        missing = self._reserves[0].missing()
        # What of the reserve cannot be kept as a file is left free instead.
        bodies = (free - file_size(self._wal) - SLACK_BYTES - missing) // 2
        if missing and not self._not_kept.get(self._reserves[0].path):
            self._shortage = self._missing(self._reserves[0])
        elif bodies < self._largest:
            self._shortage = f"{self._database}: there is no room for messages ({free:,} bytes are free)"
        else:
            self._shortage = ""
        return 0 if self._shortage else bodies

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return what shortening the write-ahead log goes on in."""
        return self._health.duty(HealthPart.CHECKPOINTS)

    def look(self) -> None:
        """Have the reserves whole, if that can be, and look what room there is; not on the event loop.

        A disk that somebody else has filled gets a little room for small things.
        """
        for each in self._reserves:
            reason = self._keep(each)
            if reason and reason != self._not_kept.get(each.path):  # once: see _note
                log.error("reserve_not_made", path=str(each.path), reason=reason)
            self._not_kept[each.path] = reason
        was_full, self._was_full = self._was_full, False
        if was_full and free_bytes(self._database.parent) < SLACK_BYTES:
            with suppress(OSError):  # a run has it, which frees all of it, or there is none
                self._reserves[0].shorten(self._database)
        self.room()

    def tell(self) -> None:
        """Note what ``look`` has found."""
        found = [self._missing(each) for each in self._reserves[1:] if each.missing()]
        if self._not_kept.get(self._reserves[0].path):
            found.insert(0, self._missing(self._reserves[0]))
        self._note(room=self._shortage, work="; ".join(found))

    def _keep(self, reserve: Reserve) -> str:
        """Have a reserve whole, if there is room; return why it cannot be kept at all, or nothing."""
        try:
            reserve.keep()
        except BlockingIOError:  # nobody knows as long as a run works in it
            return self._not_kept.get(reserve.path, "")
        except OSError as error:
            return str(error.strerror)
        return ""

    def _missing(self, reserve: Reserve) -> str:
        """Return what is wrong with a reserve that is not whole."""
        free, needed = free_bytes(reserve.path.parent), reserve.missing() + SLACK_BYTES
        if reason := self._not_kept.get(reserve.path):
            return f"{reserve.path}: {reserve.size:,} bytes cannot be kept for cleanup: {reason}"
        if free < needed:
            why = f", for which {needed:,} have to be free, but only {free:,} are"
        else:
            why = f" again as soon as no run works in them ({free:,} bytes are free)"
        return f"{reserve.path}: {reserve.size:,} bytes are to be kept for cleanup{why}"

    def _note(self, **found: str) -> None:
        """Note what is wrong, by what it keeps from working, or "" for what works."""
        before = self._faults
        self._faults = {name: text for name, text in (before | found).items() if text}
        if self._faults:
            self._health.fault(HealthPart.STORAGE, "; ".join(self._faults.values()))
        elif before:
            self._health.mend(HealthPart.STORAGE)
            self._logged.clear()
            log.info("storage_works_again")
        if new := self._faults.keys() - self._logged:
            # Each once: a log on the same disk must not take what is left of it.
            self._logged |= new
            log.error("storage_fault", **{name: self._faults[name] for name in sorted(new)})
