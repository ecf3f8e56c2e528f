"""An experiment that sends messages, erases some, and tries to decrypt them.

It records the ciphertexts, and the secrets of all key tree nodes from which the keys derive. After a run has erased
some of the messages, these must have no key, their ciphertexts must not decrypt, and none of their secrets may be in
the key file, its copies, or files beside them. As a control, other messages stay: they must decrypt and be served, and
the search must find a secret on the path to each of their keys.

The messages belong to two accounts and two groups of the experiment. Their names contain a space, which users cannot
choose, and they cannot log in. There are no other members, so no events are sent. The experiment deletes one group, and
an account that sent to the other group, where erased and staying messages alternate.

If the command is interrupted, its accounts remain until the next experiment or ``conclave user delete`` removes them,
and their messages until the next run.
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
from conclave.proof.findings import FindingKind, ProofFinding, ProofPart
from conclave.retention.policy import KEEP
from conclave.store import bodies, message_keys
from conclave.store.resources import messages
from conclave.store.resources.messages import MessageDraft
from conclave.store.sender_index import SENT
from conclave.system import locks
from conclave.system.locks import LockedError, LockRole

ROUNDS = 8
"""The number of rounds. Each sends one message to the deleted group, and two to the other group; one of them stays."""

BODY_BYTES = 100

SEARCH_SECONDS = 60
"""Staying messages must not expire within a minute, so that they do not expire during the search."""

_NAME = "erasure experiment "
_NO_HASH = "no password: erasure experiment"
_LOCK = LockRole(".experiment-lock", 2**62 + 2)

CleanUp = Callable[[], str]
"""Performs a cleanup run as the command does; returns its error or ""."""


class ExperimentError(Exception):
    """The experiment failed to run. The message is one line for the operator."""


class SentMessage(NamedTuple):
    """A message that was sent. ``stored``: its ciphertext."""

    group_id: bytes
    number: int
    body: bytes
    stored: bytes


class ExperimentObjects(NamedTuple):
    """The ids of the accounts and groups of the experiment."""

    keeper: bytes
    leaver: bytes
    kept_group: bytes
    deleted_group: bytes


class Experiment:
    """One experiment in one store."""

    def __init__(self, config: Config, outside: CommandRunner, clean_up: CleanUp) -> None:
        """``outside``: runs actions on the store of ``config``, with keys. ``clean_up``: takes the run lock itself."""
        self._config = config
        self._outside = outside
        self._clean_up = clean_up
        self._part = ProofPart("experiment")

    def run(self) -> ProofPart:
        """Send messages, erase some, search for their keys, and remove everything.

        Raises ExperimentError, CommandRunnerError, or a run's error.
        """
        context = self._outside.context()  # raises if the store cannot be used
        policy = context.policy.of_setting(KEEP, KEEP)
        if self._outside.read(message_keys.state) is None:
            self._part.notes.append("not done: this database has not been used by a server yet")
        elif not policy.erases:
            self._part.notes.append("not done: [retention] enabled is false, so nothing is erased")
        else:
            try:
                with locks.hold_inode(self._config.database, _LOCK):
                    self._run_locked(context)
            except LockedError as error:
                raise ExperimentError(f"{self._config.database}: another experiment is running") from error
            except (KeyFileError, OSError) as error:
                raise ExperimentError(str(error)) from error
        return self._part

    def _run_locked(self, context: Context) -> None:
        self._remove_all(context)  # the leftovers of an earlier experiment
        try:
            kept_key, keeper = self._send_and_search(context)
        finally:
            self._remove_all(context)
        reach("experiment.removed")
        self._clean("removing the leftovers of the experiment")
        if self._outside.read(_count_unerased, kept_key, keeper):
            self._part.notes.append("the staying messages are deleted, and erased once their min_lifetime is over")

    def _send_and_search(self, context: Context) -> tuple[int, bytes]:
        """Send messages, erase some, and search. Return the key of the remaining group, and its only member."""
        objects = self._outside.write(_create_objects, context, secrets.token_hex(16))
        kept_key, deleted_key = (self._outside.read(_key, each) for each in (objects.kept_group, objects.deleted_group))
        reach("experiment.opened")
        sent_at = context.now()
        erased, staying = self._outside.write(_send, context, objects, sent_at)
        erased_secrets, staying_paths = self._all_secrets(erased, staying)
        reach("experiment.sent")
        self._outside.write(groups.delete, context, objects.deleted_group, objects.keeper)
        self._outside.write(accounts.remove, context, objects.leaver)
        reach("experiment.deleted")
        self._clean("erasing the messages of the experiment")
        reach("experiment.erased")
        if remaining := self._outside.read(_count_unerased, deleted_key, objects.leaver):
            self._add_blind(f"the run has not erased {remaining:,} of the messages: something else keeps them")
            return kept_key, objects.keeper
        if 0 < context.policy.of_setting(KEEP, KEEP).expires_at(sent_at) <= context.now() + SEARCH_SECONDS:
            self._part.notes.append("the staying messages have expired meanwhile, so the control search is skipped")
            staying, staying_paths = [], staying_paths[-1:]
        self._check_decryption(context, objects, erased, staying)
        self._search(erased_secrets, staying_paths)
        return kept_key, objects.keeper

    def _remove_all(self, context: Context) -> None:
        """Delete the experiment's accounts, and thereby their groups."""
        for user_id in self._outside.read(_leftover_accounts):
            self._outside.write(accounts.remove, context, user_id)

    def _clean(self, purpose: str) -> None:
        if error := self._clean_up():
            raise ExperimentError(f"{purpose}: the run failed: {error}")

    def _all_secrets(
        self, erased: Sequence[SentMessage], staying: Sequence[SentMessage]
    ) -> tuple[set[bytes], list[list[bytes]]]:
        """Return all secrets from which keys of ``erased`` derive, and the path to each key of ``staying``.

        A path ends with the key itself. The last path is that of the next number, which no message has yet.
        """
        with key_files.locked_files(self._config.keys_path, self._config.keys_path):
            file = Inspection(self._config.keys_path)
        erased_paths, staying_paths = (
            [_secrets_to_key(file, each.group_id, each.number) for each in sent] for sent in (erased, staying)
        )
        staying_paths.append(_secrets_to_key(file, staying[-1].group_id, staying[-1].number + 1))
        if not all(erased_paths + staying_paths):
            raise ExperimentError(f"{file.path}: has no keys for messages that were just sent")
        return {secret for path in erased_paths for secret in path}, staying_paths

    def _check_decryption(
        self,
        context: Context,
        objects: ExperimentObjects,
        erased: Sequence[SentMessage],
        staying: Sequence[SentMessage],
    ) -> None:
        """Decrypt messages like the server: erased ones must fail, staying ones must succeed and be served."""
        self._part.count("erased messages", len(erased))
        self._part.count("messages that stay", len(staying))
        if decrypted := sum(each is not None for each in self._outside.read(_decrypt_all, erased)):
            description = f"has the keys of {decrypted} erased messages of the experiment"
            self._part.add(ProofFinding(FindingKind.KEYS, str(self._config.keys_path), description))
        if self._outside.read(_decrypt_all, staying) != [each.body for each in staying]:
            self._add_blind("staying messages cannot be decrypted, so failing to decrypt erased ones proves nothing")
        served = self._outside.read(_served_bodies, context, objects)
        if served is not None and not served.issuperset(each.body for each in staying):
            self._add_blind("staying messages are not served, so not serving erased ones proves nothing")

    def _search(self, erased_secrets: set[bytes], staying_paths: Sequence[Sequence[bytes]]) -> None:
        """Search all key files for secrets. The run has updated the configured copies."""
        self._part.count("secrets of what was erased", len(erased_secrets))
        for path in key_files.known(self._config):
            try:
                with key_files.locked_files(self._config.keys_path, path) as (real, files):
                    if real not in files:
                        self._add_blind("does not exist, so finding no keys proves nothing", path)
                    for each in files:
                        self._search_file(erased_secrets, staying_paths if each == real else (), each)
            except KeyFileError as error:
                self._part.add(ProofFinding(FindingKind.UNREADABLE, str(path), str(error)))

    def _search_file(self, erased_secrets: set[bytes], staying_paths: Sequence[Sequence[bytes]], path: Path) -> None:
        """Search a file for secrets that must not be in it, and for those that must be."""
        data = path.read_bytes()
        self._part.count("files")
        self._part.count("bytes", len(data))
        for offset in sorted(offset for offset in map(data.find, erased_secrets) if offset >= 0):
            description = "a secret from which keys of erased messages of the experiment derive"
            self._part.add(ProofFinding(FindingKind.KEYS, str(path), description, offset))
        if not all(any(secret in data for secret in secrets_on_path) for secrets_on_path in staying_paths):
            self._add_blind("the search does not find keys that must be there, so it proves nothing", path)

    def _add_blind(self, description: str, path: Path | None = None) -> None:
        self._part.add(ProofFinding(FindingKind.BLIND, str(path or self._config.database), description))


def _create_objects(connection: sqlite3.Connection, context: Context, random_suffix: str) -> ExperimentObjects:
    keeper, leaver = (
        accounts.register(connection, context, f"{_NAME}{name} {random_suffix}", _NO_HASH, "")
        for name in ("keeper", "leaver")
    )
    kept_group, deleted_group = (
        groups.create(connection, context, keeper, f"{_NAME}{name} {random_suffix}", "") for name in ("kept", "gone")
    )
    return ExperimentObjects(keeper, leaver, kept_group, deleted_group)


def _send(
    connection: sqlite3.Connection, context: Context, objects: ExperimentObjects, now: int
) -> tuple[list[SentMessage], list[SentMessage]]:
    """Store the messages; return those to erase, and those that stay.

    Messages to erase are older than any minimum lifetime. Staying messages are not fetched by all members: their sender
    has not fetched the messages between them.
    """
    erasable = max(0, min(now, context.policy.of_setting(KEEP, KEEP).erasable_before(now) - 1))
    erased, staying = list[SentMessage](), list[SentMessage]()
    for _ in range(ROUNDS):
        for sent, group_id, sender, at in (
            (erased, objects.deleted_group, objects.keeper, erasable),
            (erased, objects.kept_group, objects.leaver, erasable),
            (staying, objects.kept_group, objects.keeper, now),
        ):
            body, key = secrets.token_bytes(BODY_BYTES), _key(connection, group_id)
            (number,) = append_all(connection, [MessageDraft(key, sender, body)], at)
            (stored,) = bodies.of_messages(connection, [bodies.message_id(key, number)])
            sent.append(SentMessage(group_id, number, body, stored))
    return erased, staying


def _secrets_to_key(file: Inspection, group_id: bytes, number: int) -> list[bytes]:
    """Return the secrets from a node of the cover to the key of a number, inclusive; empty if it has no key."""
    leaf = tree.BLOCK + number % tree.BLOCK
    node = tree.covering_node(file.cover(group_id, number >> tree.HEIGHT), number % tree.BLOCK)
    if node is None:
        return []
    depth = leaf.bit_length() - node.position.bit_length()
    return [tree.descend(node.secret, leaf >> (depth - each), each) for each in range(depth + 1)]


def _decrypt_all(connection: sqlite3.Connection, sent: Sequence[SentMessage]) -> list[bytes | None]:
    return [bodies.decrypt(connection, each.group_id, [each.number], [each.stored])[0] for each in sent]


def _served_bodies(connection: sqlite3.Connection, context: Context, objects: ExperimentObjects) -> set[bytes] | None:
    """Return the bodies that a client gets from the staying group; None if some are in the archive."""
    page = messages.read_page(connection, objects.kept_group, objects.keeper, 0, 3 * ROUNDS, context.clock, _body_of)
    return None if page.archived else {each.piece for each in page.messages}


def _body_of(*values: Any, **_: Any) -> bytes:
    return bytes(values[2])


def _leftover_accounts(connection: sqlite3.Connection) -> list[bytes]:
    rows = connection.execute("SELECT user_id FROM users WHERE password_hash = ?", (_NO_HASH,))
    return [row[0] for row in rows]


def _key(connection: sqlite3.Connection, group_id: bytes) -> int:
    return int(connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (group_id,)).fetchone()[0])


def _count_unerased(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> int:
    """Return how many messages of a deleted group or account remain in the database."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM messages WHERE group_key = ?1)"
        f" + (SELECT count(*) FROM {SENT} WHERE sender_id = ?2 AND NOT is_commit AND group_key != ?1)",
        (group_key, user_id),
    ).fetchone()
    return int(row[0])
