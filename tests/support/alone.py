"""What the store alone says, read anew at each question: no memory of a server has a part in it."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, Self, cast
from uuid import UUID

from aiohttp import web

from conclave import app_keys
from conclave.archive import pages
from conclave.archive.reader import Archive
from conclave.auth import tokens
from conclave.errors import ApiError, ClockInDoubtError, NotMemberError, TokenExpiredError
from conclave.health.parts import Health
from conclave.store.engine import sqlite
from conclave.store.engine.database import Database
from conclave.store.engine.group_commit import snapshot
from conclave.store.resources import sessions
from conclave.store.resources.fetch_gaps import NO_OMISSIONS
from conclave.store.resources.members import NoMembershipError
from conclave.store.resources.sessions import SessionRow

Told = list[tuple[int, str, bytes, int, int, int, bool]] | tuple[int, int]
"""The messages of a page: number, sender, body, when stored, when it expires, for how many seconds it may be read,
whether it is redacted; or status and code of a refusal."""


class StoreAlone:
    """Reads the store of a server by connections of its own. The time is the server's."""

    def __init__(self, app: web.Application) -> None:
        config = app[app_keys.CONFIG]
        self.up_to = 0
        self.doubts = False
        self._app = app
        self._connection = sqlite.connect(config.database)
        self._archive = Archive(config.archive_path, config.database, Health(), app[app_keys.STORE].keys)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()
        await self._archive.close()

    async def read(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what ``Database.read`` does."""
        return snapshot(self._connection, lambda: fn(self._connection, *args, **kwargs))

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(sql, values)]

    def session(self, token: str) -> SessionRow | None:
        """Return the session of a token, unless it is over."""
        found = sessions.by_token_hash(self._connection, tokens.token_hash(token))
        alive = found and self._app[app_keys.CLOCK].now() < self._app[app_keys.ACTIVITY].expires_at(found)
        return found if alive else None

    def refusal(self, token: str) -> tuple[int, int]:
        """Status and code of what the holder of a token gets whose session is over by the clock, or has ended."""
        found = sessions.by_token_hash(self._connection, tokens.token_hash(token))
        earliest = self._app[app_keys.CLOCK].moment().earliest
        has_to_wait = found and earliest < self._app[app_keys.ACTIVITY].expires_at(found)
        error = ClockInDoubtError if has_to_wait else TokenExpiredError
        return error.status, int(error.code)

    async def page(self, token: str, group: str, after: int, limit: int, *, include_redacted: bool = False) -> Told:
        """Return what a fetch is to answer. ``up_to`` is then the watermark that follows from it.

        ``doubts``: whether something that the page leaves out stands against counting it.
        """
        session = self.session(token)
        if session is None:
            return self.refusal(token)
        try:
            found = await pages.page(
                cast(Database, self),
                self._archive,
                UUID(group).bytes,
                session.user_id,
                after,
                limit,
                self._app[app_keys.CLOCK],
                _write,
                include_redacted=include_redacted,
            )
        except NoMembershipError:
            return NotMemberError.status, int(NotMemberError.code)
        except ApiError as error:
            return error.status, int(error.code)
        omissions = found.omissions
        claimed = omissions.claimed(min(after, found.member.group.last_seq))
        self.up_to, self.doubts = max(claimed, omissions.fetched(after, found.fetched_up_to)), omissions != NO_OMISSIONS
        return [cast(tuple[int, str, bytes, int, int, int, bool], each.piece) for each in found.messages]

    def self_destructs(self, group: str) -> bool:
        """Whether a group has messages that destroy themselves, or were taken back."""
        has_any = "SELECT 1 FROM groups WHERE group_id = ? AND (self_destructs OR taken_back_count)"
        return bool(self.query(has_any, UUID(group).bytes))

    def is_member(self, token: str, group: str) -> bool:
        """Whether a session lives, and is one of a member."""
        session = self.session(token)
        return session is not None and bool(
            self.query(
                "SELECT 1 FROM members JOIN groups USING (group_key) WHERE group_id = ? AND user_id = ?",
                UUID(group).bytes,
                session.user_id,
            )
        )

    def watermarks(self) -> dict[tuple[str, str], int]:
        """The watermark of each member, by the ids of group and user."""
        return {
            (str(UUID(bytes=group)), str(UUID(bytes=user))): mark
            for group, user, mark in self.query(
                "SELECT group_id, user_id, watermark FROM members JOIN groups USING (group_key)"
            )
        }

    def last(self, group: str) -> int:
        """The last number of a group; 0 if it is gone."""
        found = self.query("SELECT last_seq FROM groups WHERE group_id = ?", UUID(group).bytes)
        return int(found[0][0]) if found else 0


def _write(
    sequence_num: int,
    sender_id: bytes,
    body: bytes,
    created_at: int,
    expires_at: int,
    self_destruct_seconds: int = 0,
    *,
    redacted: bool = False,
) -> bytes:
    told = sequence_num, str(UUID(bytes=sender_id)), body, created_at, expires_at, self_destruct_seconds, redacted
    return cast(bytes, told)


def once(path: Any, sql: str, *values: Any) -> None:
    """Change the store by a connection of its own, as another process would."""
    with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
        connection.execute(sql, values)
