"""Builds stores directly, without a server."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from conclave.actions.messages import append
from conclave.auth.tokens import new_token, token_hash
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.store import keyring
from conclave.store.engine import schema, sqlite
from conclave.store.engine.connection import of_store
from conclave.store.resources import groups, sessions, state, users
from conclave.store.resources.members import Membership
from conclave.wire.formats import Format
from tests.support.memberships import member_of

BODY = os.urandom(300)


@dataclass(frozen=True)
class Store:
    config: Config
    tokens: list[str]
    """One of each user."""
    groups: list[str]
    """Their ids."""
    creators: list[Membership]
    """One in each group."""
    groups_of: list[list[int]]
    """Each user's places in ``groups``."""


@dataclass(frozen=True)
class Shape:
    """How many of what. Group n has the expiry ``expiries[n % len(expiries)]``. ``body``: that of all messages."""

    users: int
    groups: int
    members: int
    expiries: Sequence[int] = (-1,)
    body: bytes = BODY


@contextmanager
def opened(config: Config) -> Iterator[sqlite3.Connection]:
    """Open a transaction, with the keys of the database."""
    with (
        closing(keyring.open_to_serve(config.database, config.keys_path)) as keys,
        closing(sqlite.connect(config.database)) as connection,
        sqlite.write_transaction(connection),
    ):
        of_store(connection).keys = keys
        yield connection


def build(folder: Path, engine: str, now: int, shape: Shape, sent: Sequence[int]) -> Store:
    """Make a store in which each group has one message for each second in ``sent``, its creator's."""
    config = Config(database_path=str(folder / "conclave.db"), cleanup=CleanupConfig(engine=engine))
    tokens = [new_token(Format.JSON) for _ in range(shape.users)]
    schema.prepare(config.database)
    with opened(config) as connection:
        state.begin_serving(connection, config.policy, FakeClock(now).read())
        people = [users.add(connection, f"user{n}", "no password", "", now) for n in range(shape.users)]
        for person, token in zip(people, tokens, strict=True):
            sessions.add(connection, person, "no password", token_hash(token), now, config.token_ttl_seconds)
        creators = []
        groups_of: list[list[int]] = [[] for _ in people]
        for n in range(shape.groups):
            places = [(n * shape.members + m) % shape.users for m in range(shape.members)]
            first, *others = [people[each] for each in places]
            for each in places:
                groups_of[each].append(n)
            group_id = groups.add(connection, first, f"group{n}", "", now, config.policy)
            creators.append(member_of(connection, group_id, first))
            key = creators[-1].group.group_key
            connection.executemany(
                "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (?, ?, 'member', ?)",
                [(key, other, now) for other in others],
            )
            expiry = shape.expiries[n % len(shape.expiries)]
            connection.execute("UPDATE groups SET message_expiry_seconds = ? WHERE group_key = ?", (expiry, key))
            marks.write(connection, config.policy, key)
        for second in sent:
            for creator in creators:
                append(connection, creator, shape.body, second, is_commit=False)
    return Store(config, tokens, [str(UUID(bytes=each.group.group_id)) for each in creators], creators, groups_of)


def fill(store: Store, group: int, sent: Sequence[int]) -> None:
    """Add messages to one group, one for each second in ``sent``."""
    for begin in range(0, len(sent), 10_000):
        with opened(store.config) as connection:
            for second in sent[begin : begin + 10_000]:
                append(connection, store.creators[group], BODY, second, is_commit=False)


def expire_session(path: Path) -> None:
    """Give the next run something to delete: a session that has expired, of a user of its own."""
    user_id = os.urandom(16)
    with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
        connection.execute(
            "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, ?, '', '', 1)",
            (user_id, f"due-{user_id.hex()}"),
        )
        connection.execute(
            "INSERT INTO sessions (token_hash, user_id, created_at, last_used_at, expires_at) VALUES (?, ?, 1, 1, 2)",
            (os.urandom(32), user_id),
        )
