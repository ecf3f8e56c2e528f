"""The experiment: messages are sent, some are erased, and it is tried to open them with all that there is.

Their ciphertexts are noted, and the secrets of every node of the tree of keys from which their keys follow. A run
erases some of them. Then these have no key, their ciphertexts cannot be opened, and none of their secrets is in any
byte of the key file, of its copies, or of what lies beside these. A search that could find nothing would prove nothing.
So others stay: they have to be opened and served, and a secret on the way to each key has to be found.

The messages are those of two accounts and two groups of the experiment's own. Their names have a space, which no user
can choose, and they cannot log in. They have no other members, so no event goes out. A group is deleted with its
messages, and an account that has sent to the other group, in which what stays lies between what goes.

If the command is stopped half way, the accounts are left, with what is theirs. The next experiment removes them, and so
does ``conclave user delete``. What that leaves goes with the next run, as of any deleted account.
"""

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conclave.actions import accounts, groups
from conclave.actions.command_runner import CommandRunner
from conclave.actions.context import Context
from conclave.actions.messages import append_all
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.proof import key_files
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.retention.policy import KEEP
from conclave.store import bodies, message_keys
from conclave.store.resources import messages
from conclave.store.resources.messages import MessageDraft
from conclave.store.sender_index import SENT
from conclave.system import locks
from conclave.system.locks import LockedError, LockRole

ROUNDS = 8
"""So many times one message is sent to the group that goes, and two to the other, of which one stays."""

BODY_BYTES = 100

LOOKING_SECONDS = 60
"""What has to stay must live for a minute more: otherwise it might expire while it is looked for."""

_NAME = "erasure experiment "
_NO_HASH = "no password: erasure experiment"
_LOCK = LockRole(".experiment-lock", 2**62 + 2)

CleanUp = Callable[[], str]
"""Does a cleanup run as the command for it does; returns its error, "" for none."""


class ExperimentError(Exception):
    """The experiment could not be done. The message is one line for the operator."""


class Sent(NamedTuple):
    """A message that was sent. ``stored``: its ciphertext."""

    group_id: bytes
    number: int
    body: bytes
    stored: bytes


class Own(NamedTuple):
    """What is the experiment's own: the accounts and groups that stay and that go."""

    keeper: bytes
    leaver: bytes
    kept: bytes
    gone: bytes


class Experiment:
    """One experiment, in one store."""

    def __init__(self, config: Config, outside: CommandRunner, clean_up: CleanUp) -> None:
        """``outside`` runs actions on the store of ``config``, with keys. ``clean_up`` takes the run lock itself."""
        self._config = config
        self._outside = outside
        self._clean_up = clean_up
        self._part = ProofPart("experiment")

    def run(self) -> ProofPart:
        """Send, erase, look, and remove everything. Raises ExperimentError, CommandRunnerError, or a run's error."""
        context = self._outside.context()  # or say what keeps the store from being used
        policy = context.policy.of_setting(KEEP, KEEP)
        if self._outside.read(message_keys.state) is None:
            self._part.notes.append("not done: no server has run on this database")
        elif not policy.erases:
            self._part.notes.append("not done: [retention] enabled is false, so nothing is erased")
        else:
            try:
                with locks.hold_inode(self._config.database, _LOCK):
                    self._do(context)
            except LockedError as error:
                raise ExperimentError(f"{self._config.database}: another experiment is under way") from error
            except (KeyFileError, OSError) as error:
                raise ExperimentError(str(error)) from error
        return self._part

    def _do(self, context: Context) -> None:
        self._remove_all(context)  # what an earlier one has left
        try:
            kept, keeper = self._try(context)
        finally:
            self._remove_all(context)
        reach("experiment.removed")
        self._run("removing what is left of the experiment")
        if self._outside.read(_unerased, kept, keeper):
            self._part.notes.append("what had to stay is deleted, and erased once its min_lifetime is over")

    def _try(self, context: Context) -> tuple[int, bytes]:
        """Send, erase, and look. Return the key of the group that stays, and its only member."""
        own = self._outside.write(_open, context, secrets.token_hex(16))
        kept, gone = (self._outside.read(_key, each) for each in (own.kept, own.gone))
        reach("experiment.opened")
        sent_at = context.now()
        erased, staying = self._outside.write(_send, context, own, sent_at)
        dead, alive = self._paths(erased, staying)
        reach("experiment.sent")
        self._outside.write(groups.delete, context, own.gone, own.keeper)
        self._outside.write(accounts.remove, context, own.leaver)
        reach("experiment.deleted")
        self._run("erasing the messages of the experiment")
        reach("experiment.erased")
        if left := self._outside.read(_unerased, gone, own.leaver):
            self._blind(f"the run has not erased {left:,} of the messages: something else keeps them")
            return kept, own.keeper
        if 0 < context.policy.of_setting(KEEP, KEEP).expires_at(sent_at) <= context.now() + LOOKING_SECONDS:
            self._part.notes.append("what had to stay has expired meanwhile, and is not looked for")
            staying, alive = [], alive[-1:]
        self._try_to_open(context, own, erased, staying)
        self._search(dead, alive)
        return kept, own.keeper

    def _remove_all(self, context: Context) -> None:
        """Delete the experiment's accounts, and with them the groups of which they are the only members."""
        for user_id in self._outside.read(_left):
            self._outside.write(accounts.remove, context, user_id)

    def _run(self, doing: str) -> None:
        if error := self._clean_up():
            raise ExperimentError(f"{doing}: the run failed: {error}")

    def _paths(self, erased: Sequence[Sent], staying: Sequence[Sent]) -> tuple[set[bytes], list[list[bytes]]]:
        """Return all secrets from which keys of ``erased`` follow; and those of each other key, the key itself last.

        The last of these is that of the number that follows, which no message has yet.
        """
        with key_files.undisturbed(self._config.keys_path, self._config.keys_path):
            found = Inspection(self._config.keys_path)
        dead, alive = ([_path(found, each.group_id, each.number) for each in sent] for sent in (erased, staying))
        alive.append(_path(found, staying[-1].group_id, staying[-1].number + 1))
        if not all(dead + alive):
            raise ExperimentError(f"{found.path}: has no keys of messages that were just sent")
        return {secret for path in dead for secret in path}, alive

    def _try_to_open(self, context: Context, own: Own, erased: Sequence[Sent], staying: Sequence[Sent]) -> None:
        """Open messages as the server does: what is erased has no key, and what stays is opened, and served."""
        self._part.count("erased messages", len(erased))
        self._part.count("messages that stay", len(staying))
        if opened := sum(each is not None for each in self._outside.read(_opened, erased)):
            told = f"has the keys of {opened} messages of the experiment that were erased"
            self._part.add(Finding(Kind.KEYS, str(self._config.keys_path), told))
        if self._outside.read(_opened, staying) != [each.body for each in staying]:
            self._blind("messages that stay cannot be opened, so that others cannot proves nothing")
        served = self._outside.read(_served, context, own)
        if served is not None and not served.issuperset(each.body for each in staying):
            self._blind("messages that stay are not served, so that others are not proves nothing")

    def _search(self, dead: set[bytes], alive: Sequence[Sequence[bytes]]) -> None:
        """Search every byte of every file of keys for secrets. The run has renewed the copies that settings name."""
        self._part.count("secrets of what was erased", len(dead))
        for path in key_files.known(self._config):
            try:
                with key_files.undisturbed(self._config.keys_path, path) as (real, files):
                    if real not in files:
                        self._blind("is not there, so that what is not found proves nothing", path)
                    for each in files:
                        self._look_for(dead, alive if each == real else (), each)
            except KeyFileError as error:
                self._part.add(Finding(Kind.UNREADABLE, str(path), str(error)))

    def _look_for(self, dead: set[bytes], alive: Sequence[Sequence[bytes]], path: Path) -> None:
        """Look for what may not be in a file, and for what has to be there."""
        data = path.read_bytes()
        self._part.count("files")
        self._part.count("bytes", len(data))
        for offset in sorted(offset for offset in map(data.find, dead) if offset >= 0):
            told = "a secret from which keys of erased messages of the experiment follow"
            self._part.add(Finding(Kind.KEYS, str(path), told, offset))
        if not all(any(secret in data for secret in some) for some in alive):
            self._blind("the search does not find keys that have to be there, so it proves nothing", path)

    def _blind(self, told: str, path: Path | None = None) -> None:
        self._part.add(Finding(Kind.BLIND, str(path or self._config.database), told))


def _open(connection: sqlite3.Connection, context: Context, chance: str) -> Own:
    keeper, leaver = (
        accounts.register(connection, context, f"{_NAME}{name} {chance}", _NO_HASH, "") for name in ("keeper", "leaver")
    )
    kept, gone = (
        groups.create(connection, context, keeper, f"{_NAME}{name} {chance}", "") for name in ("kept", "gone")
    )
    return Own(keeper, leaver, kept, gone)


def _send(connection: sqlite3.Connection, context: Context, own: Own, now: int) -> tuple[list[Sent], list[Sent]]:
    """Store the messages; return those that are to be erased, and those that stay.

    The first are so old that no least lifetime keeps them. The others are fetched by nobody: their sender has not seen
    those between them.
    """
    erasable = max(0, min(now, context.policy.of_setting(KEEP, KEEP).erasable_before(now) - 1))
    erased, staying = list[Sent](), list[Sent]()
    for _ in range(ROUNDS):
        for found, group_id, sender, at in (
            (erased, own.gone, own.keeper, erasable),
            (erased, own.kept, own.leaver, erasable),
            (staying, own.kept, own.keeper, now),
        ):
            body, key = secrets.token_bytes(BODY_BYTES), _key(connection, group_id)
            (number,) = append_all(connection, [MessageDraft(key, sender, body)], at)
            (stored,) = bodies.of_messages(connection, [bodies.message_id(key, number)])
            found.append(Sent(group_id, number, body, stored))
    return erased, staying


def _path(found: Inspection, group_id: bytes, number: int) -> list[bytes]:
    """Return the secrets between a node of the cover and the key of a number, both included; none: it has no key."""
    leaf = tree.BLOCK + number % tree.BLOCK
    node = tree.covering_node(found.cover(group_id, number >> tree.HEIGHT), number % tree.BLOCK)
    if node is None:
        return []
    steps = leaf.bit_length() - node.position.bit_length()
    return [tree.descend(node.secret, leaf >> (steps - each), each) for each in range(steps + 1)]


def _opened(connection: sqlite3.Connection, sent: Sequence[Sent]) -> list[bytes | None]:
    return [bodies.decrypt(connection, each.group_id, [each.number], [each.stored])[0] for each in sent]


def _served(connection: sqlite3.Connection, context: Context, own: Own) -> set[bytes] | None:
    """Return the bodies that a client gets of the group that stays; None if some are in the archive by now."""
    page = messages.read_page(connection, own.kept, own.keeper, 0, 3 * ROUNDS, context.clock, _body_of)
    return None if page.archived else {each.piece for each in page.messages}


def _body_of(*values: Any, **_: Any) -> bytes:
    return bytes(values[2])


def _left(connection: sqlite3.Connection) -> list[bytes]:
    rows = connection.execute("SELECT user_id FROM users WHERE password_hash = ?", (_NO_HASH,))
    return [row[0] for row in rows]


def _key(connection: sqlite3.Connection, group_id: bytes) -> int:
    return int(connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (group_id,)).fetchone()[0])


def _unerased(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> int:
    """Return how many messages of a deleted group or account are left in the database."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM messages WHERE group_key = ?1)"
        f" + (SELECT count(*) FROM {SENT} WHERE sender_id = ?2 AND NOT is_commit AND group_key != ?1)",
        (group_key, user_id),
    ).fetchone()
    return int(row[0])
