"""Canaries: marked messages that are sent, erased, and looked for in every byte of every file.

``verify`` shows that there is nothing where nothing belongs. The canary shows the same from the other side: what was
seen to be stored, and then erased, is nowhere. And a search that could find nothing would prove nothing. So some of the
messages stay until the search is over, and have to be found.

The messages are those of two accounts and two groups of the canary's own. Their names have a space, which no user can
choose, and they cannot log in. They have no other members, so no event goes out.

- A group is deleted, with messages of 24 bytes to 64 KiB.
- An account is deleted that has sent such messages to the other group.
- If messages move to the archive, some of each are stored as of a time at which they move at once. They lie there among
  other messages of the same age.
- What the first account has sent to the other group stays, and must be found in both tiers.

A mark has 8 random bytes and comes every 16 bytes, with other random bytes between. So any 24 bytes in a row of a body
have a whole mark.

If the command is stopped half way, the accounts are left, with what is theirs. The next canary removes them, and so
does ``conclave user delete``. What that leaves goes with the next run, as of any deleted account.
"""

import os
import secrets
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from conclave.actions import accounts, groups
from conclave.actions.command_runner import Outside
from conclave.actions.context import Context
from conclave.actions.messages import append_all
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.proof.search import Hit, Search
from conclave.retention.policy import KEEP, GroupPolicy
from conclave.store.engine.faults import file_size
from conclave.store.resources.messages import Draft
from conclave.store.sender_index import SENT
from conclave.system import locks
from conclave.system.locks import LockedError, Role

SIZES = (24, 40, 100, 300, 1_000, 3_900, 4_100, 10_000, 65_536)
"""The bytes of the messages. Smaller ones could not be told from chance."""

OF_EACH = 4
"""So many messages of each size are sent."""

OLDER_SECONDS = 60
"""What is to move to the archive is a minute older than what moves."""

LASTING_SECONDS = 3600
"""And it has to live for an hour more: otherwise it might expire before it is looked for."""

MOST_HITS = 100
"""At most 100 places of each mark are told of a file."""

LISTS = 3
"""Files are listed 3 times: each time those are searched that are new."""

MARK_BYTES, PERIOD = 8, 16

_NAME = "erasure canary "
_NO_HASH = "no password: erasure canary"
_LOCK = Role(".canary-lock", 2**62 + 2)

CleanUp = Callable[[], str]
"""Does a cleanup run as the command for it does; returns its error, "" for none."""


class CanaryError(Exception):
    """The canary could not be sent. The message is one line for the operator."""


@dataclass(frozen=True)
class CanaryPatterns:
    """The mark of what is erased, and of what stays."""

    erased: bytes
    control: bytes


@dataclass(frozen=True)
class Own:
    """What is the canary's own: the accounts and groups that stay and that go."""

    keeper: bytes
    leaver: bytes
    kept: bytes
    gone: bytes


class Canary:
    """One canary, in one store."""

    def __init__(self, config: Config, outside: Outside, clean_up: CleanUp) -> None:
        """``outside`` runs actions on the store of ``config``. No run lock is held: ``clean_up`` takes it."""
        self._config = config
        self._outside = outside
        self._clean_up = clean_up
        self._marks = CanaryPatterns(secrets.token_bytes(MARK_BYTES), secrets.token_bytes(MARK_BYTES))
        self._part = ProofPart("canary")
        self._began = time.time()
        self._temporary = Path(tempfile.gettempdir())  # later on a run may use another folder

    def run(self) -> ProofPart:
        """Send, erase, search, and remove everything. Raises CanaryError, OutsideError, and what a run raises."""
        context = self._outside.context()  # or say what keeps the store from being used
        try:
            with locks.hold_inode(self._config.database, _LOCK):
                with self._removed_at_the_end(context):
                    own = self._send(context)
                    reach("canary.sent")
                    self._move(own)
                    reach("canary.moved")
                    self._erase(context, own)
                    reach("canary.erased")
                    self._look(own)
                    kept = self._outside.read(_key, own.kept)
                reach("canary.removed")
                self._run("removing what is left of the canary")
                if self._outside.read(_unerased, kept, own.keeper):
                    self._part.notes.append("what had to stay is deleted, and erased once its min_lifetime is over")
        except LockedError as error:
            raise CanaryError(f"{self._config.database}: another canary is under way") from error
        except OSError as error:
            raise CanaryError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
        return self._part

    @contextmanager
    def _removed_at_the_end(self, context: Context) -> Iterator[None]:
        self._remove_all(context)  # what an earlier one has left
        try:
            yield
        finally:
            self._remove_all(context)

    def _remove_all(self, context: Context) -> None:
        """Delete the canary's accounts, and with them the groups of which they are the only members."""
        for user_id in self._outside.read(_left):
            self._outside.write(accounts.remove, context, user_id)

    def _send(self, context: Context) -> Own:
        """Store the messages, those for the archive first: a message moves only with all before it.

        What is to be erased is so old that no least lifetime keeps it.
        """
        now = context.now()
        policy = context.policy.of_setting(KEEP, KEEP)
        erasable = min(now, policy.erasable_before(now) - 1)
        if erasable < 0:
            raise CanaryError("[retention] enabled is false: nothing is erased, so there is nothing to prove")
        times = [(erasable, now)]
        if self._reaches_archive(policy, now - erasable):
            moving = min(now - self._config.archive.after - OLDER_SECONDS, erasable)
            times.insert(0, (moving, moving))
        own = self._outside.write(_open, context, secrets.token_hex(16))
        reach("canary.opened")
        for erased_at, control_at in times:
            for size in SIZES * OF_EACH:
                self._outside.write(self._send_three, own, size, erased_at, control_at)
        self._part.count("erased messages", 2 * len(times) * len(SIZES) * OF_EACH)
        self._part.count("messages that stay", len(times) * len(SIZES) * OF_EACH)
        return own

    def _send_three(self, connection: sqlite3.Connection, own: Own, size: int, erased_at: int, control_at: int) -> None:
        """Store a message of each kind, as of these seconds. The transaction is short."""
        kept, gone = _key(connection, own.kept), _key(connection, own.gone)
        erased = [
            Draft(gone, own.keeper, _body(self._marks.erased, size)),
            Draft(kept, own.leaver, _body(self._marks.erased, size)),
        ]
        append_all(connection, erased, erased_at)
        append_all(connection, [Draft(kept, own.keeper, _body(self._marks.control, size))], control_at)

    def _reaches_archive(self, policy: GroupPolicy, age: int) -> bool:
        """Tell whether messages of a group that keeps would move; otherwise note why the archive is not covered.

        ``age``: the least age, in seconds, of what is to be erased.
        """
        archive = self._config.archive
        lasting = max(archive.least_lifetime, max(archive.after, age) + LASTING_SECONDS)
        if archive.after == KEEP:
            self._part.notes.append("the archive is not covered: no message moves there")
        elif archive.erase_delay:
            self._part.notes.append("the archive is not covered: [archive] erase_delay keeps what is replaced there")
        elif archive.rewrite_after:
            self._part.notes.append(
                "the archive is not covered: [archive] rewrite_after keeps what is unreadable there"
            )
        elif not policy.outlives(lasting):
            self._part.notes.append("the archive is not covered: no message lives for long enough to move there")
        else:
            return True
        return False

    def _move(self, own: Own) -> None:
        """Have the older messages move, unless the archive is not covered."""
        if self._part.notes:
            return
        self._run("moving messages to the archive")
        if not (self._outside.read(_archived, own.kept) and self._outside.read(_archived, own.gone)):
            self._part.notes.append("the archive is not covered: the run has not moved the canary's messages")

    def _erase(self, context: Context, own: Own) -> None:
        key = self._outside.read(_key, own.gone)
        self._outside.write(groups.delete, context, own.gone, own.keeper)
        self._outside.write(accounts.remove, context, own.leaver)
        reach("canary.deleted")
        self._run("erasing the canary's messages")
        if left := self._outside.read(_unerased, key, own.leaver):
            told = f"the run has not erased {left:,} of the canary's messages: something else keeps them"
            self._part.add(Finding(Kind.BLIND, str(self._config.database), told))

    def _run(self, doing: str) -> None:
        if error := self._clean_up():
            raise CanaryError(f"{doing}: the run failed: {error}")

    def _look(self, own: Own) -> None:
        """Search every file. No connection to the store is open in this process meanwhile.

        What stays has to be found in each tier in which it was all the time: runs of others may move it.
        """
        tiers = {"database": self._config.database, "archive": self._config.archive_path}
        was_archived = self._outside.read(_archived, own.kept)
        seen: Counter[str] = Counter()
        for hit in self._hits():
            if hit.mark == self._marks.control:
                seen.update(name for name, path in tiers.items() if hit.path.is_relative_to(path))
            else:
                told = "a piece of a message of the canary, which was erased"
                self._part.add(Finding(Kind.MARK, str(hit.path), told, None, hit.offset))
        if not was_archived:
            del tiers["archive"]
        if not self._outside.read(_has_hot, own.kept):
            del tiers["database"]
        if not tiers and not seen:
            tiers["data directory"] = self._config.data  # all of it has moved while it was looked for
        for name, path in tiers.items():
            self._part.count(f"pieces in the {name} of messages that stay", seen[name])
            if not seen[name]:
                told = "the search does not find the messages that are there, so it proves nothing"
                self._part.add(Finding(Kind.BLIND, str(path), told))

    def _hits(self) -> Iterator[Hit]:
        """Search the files that there are, and then those that runs of others have put in the place of some."""
        search = Search((self._marks.erased, self._marks.control), MOST_HITS)
        searched = set[Path]()
        for _ in range(LISTS):
            for path in dict.fromkeys(each for each in self._files() if each not in searched):
                searched.add(path)
                self._part.count("files")
                self._part.count("bytes", file_size(path))
                yield from search.in_bytes(path)
                if path.is_relative_to(self._config.archive_path):
                    yield from search.in_packed(path)

    def _files(self) -> Iterator[Path]:
        """Yield the database's files, all under the data directory, and the temporary ones that are new."""
        database = self._config.database
        for path in database.parent.iterdir():
            if path.name.startswith(database.name) and _is_file(path):
                yield path
        for folder in (self._config.data, self._config.archive_path):
            yield from filter(_is_file, _under(folder, _raise_unless_gone))
        for path in _under(self._temporary):
            with suppress(OSError):  # another user's, or gone
                if _is_file(path) and os.access(path, os.R_OK) and path.stat().st_mtime >= self._began:
                    yield path


def _open(connection: sqlite3.Connection, context: Context, chance: str) -> Own:
    keeper, leaver = (
        accounts.register(connection, context, f"{_NAME}{name} {chance}", _NO_HASH, "") for name in ("keeper", "leaver")
    )
    kept, gone = (
        groups.create(connection, context, keeper, f"{_NAME}{name} {chance}", "") for name in ("kept", "gone")
    )
    return Own(keeper, leaver, kept, gone)


def _left(connection: sqlite3.Connection) -> list[bytes]:
    rows = connection.execute("SELECT user_id FROM users WHERE password_hash = ?", (_NO_HASH,))
    return [row[0] for row in rows]


def _key(connection: sqlite3.Connection, group_id: bytes) -> int:
    return int(connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (group_id,)).fetchone()[0])


def _archived(connection: sqlite3.Connection, group_id: bytes) -> bool:
    row = connection.execute("SELECT archived_seq FROM groups WHERE group_id = ?", (group_id,)).fetchone()
    return bool(row and row[0])


def _has_hot(connection: sqlite3.Connection, group_id: bytes) -> bool:
    """Tell whether messages of the group are in the database alone, or on their way to the archive."""
    row = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM messages WHERE group_key = ?1 AND sequence_num > ifnull("
        "(SELECT archived_seq FROM groups WHERE group_key = ?1), 0))",
        (_key(connection, group_id),),
    ).fetchone()
    return bool(row[0])


def _unerased(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> int:
    """Return how many messages of a deleted group or account are left; archived ones count as one."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM messages WHERE group_key = ?1)"
        f" + (SELECT count(*) FROM {SENT} WHERE sender_id = ?2 AND NOT is_commit AND group_key != ?1)"
        " + EXISTS (SELECT 1 FROM archive_parts WHERE group_key = ?1)"
        " + EXISTS (SELECT 1 FROM archive_senders WHERE sender_id = ?2)",
        (group_key, user_id),
    ).fetchone()
    return int(row[0])


def _body(mark: bytes, size: int) -> bytes:
    """Return a body of ``size`` bytes, any 24 of which in a row have a whole mark; the rest of it is random."""
    blocks = (mark + secrets.token_bytes(PERIOD - len(mark)) for _ in range(size // PERIOD + 1))
    return b"".join(blocks)[:size]


def _under(folder: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yield what lies under a folder and is none itself. Folders go at any time: those of runs, and of others."""
    for parent, _, names in os.walk(folder, onerror=on_error):
        for name in names:
            yield Path(parent, name)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
