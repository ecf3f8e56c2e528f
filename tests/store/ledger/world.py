"""A store that is used without a server: users talk in groups, operators and runs do their part, backups are made."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from conclave.actions import (
    accounts,
    bans as banning,
    groups as grouping,
    invites as inviting,
    members as joining,
    purges,
    taking_back,
)
from conclave.actions.authorisation import require_group
from conclave.actions.commits import Commit
from conclave.actions.context import Context
from conclave.actions.groups import change as change_group
from conclave.actions.messages import append_all
from conclave.actions.replay import ReplayResult, replay
from conclave.actions.taking_back import TakeBackRequest
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.config.vault import VaultConfig
from conclave.retention.visibility import of_group, of_reader
from conclave.store.engine import sqlite
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import LedgerError
from conclave.store.ledger.changes import drain
from conclave.store.resources import bans, groups, invites, members, messages, state, taken_back, timers, users
from conclave.store.resources.groups import GroupChanges, GroupRow
from conclave.store.resources.members import Membership
from conclave.store.resources.messages import MessageDraft
from spark import run
from spark.environment import RunEnvironment
from tests.support import stores

HOUR, DAY = 3600, 86_400


def _unmounted(path: Path, *_: object) -> NoReturn:
    raise LedgerError(f"{path}: No such file or directory")


Shown = set[tuple[bytes, int, int]]
"""Who is shown which message: user, group's key, number."""


class World:
    """One store, in a folder of its own; or a copy of one, restored beside it, with the same vault."""

    def __init__(self, folder: Path, clock: FakeClock, vault: Path, config: Config | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        vault.mkdir(exist_ok=True)
        base = config or Config(cleanup=CleanupConfig(engine="sql", disk_reserve=0))
        self.config = replace(base, database_path=str(folder / "hot.db"), vault=VaultConfig(str(vault)))
        self.folder, self.clock, self.ledger = folder, clock, self.config.ledger_path
        link = folder / "hot.vault"
        if not link.exists():
            link.symlink_to(vault)  # where tests look for the keys of a connection

    @property
    def path(self) -> Path:
        return self.config.database

    @property
    def context(self) -> Context:
        return Context(self.config.policy, self.clock)

    def begin(self) -> None:
        """Do what a server does at its start."""
        stores.prepare(self.path)
        with self.writing() as connection:
            state.begin_serving(connection, self.config.policy, self.clock.read(), accepts_change=True)
            inviting.withdraw_all(connection)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite.connect(self.path)) as connection, sqlite.write_transaction(connection):
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite.connect(self.path)) as connection:
            yield connection

    def beat(self) -> None:
        """Do what the server does every few seconds, and write to the ledger."""
        with self.writing() as connection:
            state.note_alive(connection, self.clock.read())
            changes.claim(connection, is_alive=True)
        drain(self.path, self.ledger, self.clock.now())

    def backup(self, copy: Path) -> None:
        with self.reading() as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))

    def restored(self, copy: Path, folder: Path) -> "World":
        """Return the world of a copy, before the ledger is replayed."""
        world = World(folder, self.clock, self.config.vault_path, self.config)
        shutil.copy(copy, world.path)
        stores.prepare(world.path)
        return world

    def replay(self) -> ReplayResult:
        with self.reading() as connection:
            return replay(connection, self.ledger, self.clock.now())

    def clean_up(self, *, can_tell: bool = True) -> None:
        """Do a run; ``can_tell``: whether it can write to the ledger."""
        unwritten = nullcontext() if can_tell else patch.object(book, "append", _unmounted)
        with unwritten, closing(RunEnvironment(self.config, self.clock)) as engine:
            report = run.clean_up(engine)
        assert not report.error or (report.error.startswith("ledger: ") and not can_tell), report.error

    def accept_clock(self) -> None:
        engine = RunEnvironment(self.config, self.clock)
        try:
            report = run.clean_up(engine, accept_clock=True)
        finally:
            engine.close()
        assert not report.error, report.error

    def tell(self) -> None:
        """Tell readers what is redacted for them, as the server does."""
        with self.writing() as connection:
            timers.take_ended(connection, self.clock.now())
            taken_back.take_unnotified(connection)

    def register(self, name: str) -> bytes:
        with self.writing() as connection:
            return users.add(connection, name, "hash", "", self.clock.now())

    def create_group(self, name: str, *user_ids: bytes) -> bytes:
        with self.writing() as connection:
            group_id = groups.add(connection, user_ids[0], name, "", self.clock.now(), self.config.policy)
            for user_id in user_ids[1:]:
                members.add(connection, require_group(connection, group_id).group_key, user_id, self.clock.now())
            return group_id

    def groups(self) -> list[GroupRow]:
        with self.reading() as connection:
            return [
                GroupRow(**row) for row in connection.execute(f"SELECT {groups.COLUMNS} FROM groups ORDER BY group_key")
            ]

    def memberships(self) -> list[Membership]:
        with self.reading() as connection:
            keys = connection.execute("SELECT member_id FROM members ORDER BY member_id").fetchall()
            return [found for (key,) in keys if (found := members.find_by_key(connection, key))]

    def send(self, member: Membership, body: bytes = b"body", *, seconds: int = 0, is_commit: bool = False) -> int:
        with self.writing() as connection:
            draft = MessageDraft(member.group.group_key, member.user_id, body, is_commit, seconds)
            return append_all(connection, [draft], self.clock.now())[0]

    def take_back(self, member: Membership, number: int) -> None:
        """Have a member take a message back. Raises ApiError."""
        with self.writing() as connection:
            wish = TakeBackRequest(member.group.group_id, member.user_id, number, admins_may=True)
            sent = messages.find_sent(connection, member.group.group_key, number)
            taking_back.take_back(connection, self.context, wish, sent)

    def fetch(self, member: Membership) -> None:
        with self.writing() as connection:
            last = require_group(connection, member.group.group_id).last_seq
            members.confirm_fetched(connection, [(member.member_id, last)])

    def read(self, member: Membership, up_to: int) -> None:
        with self.writing() as connection:
            acted_until = state.latest_acted_on(connection, self.clock.read())
            timers.note_read(connection, member, up_to, self.clock.now(), 1_000, acted_until=acted_until)

    def change_policy(self, group: GroupRow, expiry: int) -> None:
        with self.writing() as connection:
            changed = GroupChanges(message_expiry_seconds=expiry)
            change_group(connection, Context(self.config.policy, self.clock), group, changed)

    def change_settings(self, retention: int) -> None:
        with self.writing() as connection:
            state.note_alive(connection, self.clock.read(), stopping=True)
        self.config = replace(self.config, message_retention=retention)
        self.begin()

    def change_max_age(self, seconds: int) -> None:
        """Change for how long a self-destructing message may be read for the first time."""
        with self.writing() as connection:
            state.note_alive(connection, self.clock.read(), stopping=True)
        retention = replace(self.config.retention, self_destruct_max_age=seconds)
        self.config = replace(self.config, retention=retention)
        self.begin()

    def purge(self, group: GroupRow, before: int) -> None:
        with self.writing() as connection:
            purges.purge(connection, self.context, "operator root", group.group_id, before)

    def delete_group(self, group: GroupRow) -> None:
        with self.writing() as connection:
            grouping.end(connection, group, self.clock.now())

    def delete_account(self, user_id: bytes) -> None:
        with self.writing() as connection:
            accounts.end(connection, user_id, self.clock.now())

    def leave(self, member: Membership) -> None:
        with self.writing() as connection:
            joining.end_and_withdraw(connection, member, self.clock.now())

    def join(self, group: GroupRow, user_id: bytes) -> None:
        with self.writing() as connection:
            members.add(connection, group.group_key, user_id, self.clock.now())

    def ban(self, admin: Membership, user_id: bytes) -> None:
        with self.writing() as connection:
            banning.ban(connection, self.context, admin.group.group_id, admin.user_id, user_id, Commit())

    def demote(self, member: Membership) -> None:
        with self.writing() as connection:
            joining.demote(connection, self.context, member.group.group_id, member.user_id, member.user_id)

    def promote(self, member: Membership) -> None:
        with self.writing() as connection:
            admin = "SELECT user_id FROM members WHERE group_key = ? AND role = 'admin'"
            admin_id = connection.execute(admin, (member.group.group_key,)).fetchone()[0]
            joining.promote(connection, self.context, member.group.group_id, admin_id, member.user_id)

    def disable(self, user_id: bytes) -> None:
        with self.writing() as connection:
            accounts.disable(connection, user_id)

    def invite(self, admin: Membership, user_id: bytes) -> None:
        """Have a member invite somebody, if that member is an admin."""
        with self.writing() as connection:
            carried = [b"commit", b"welcome", b"info"]
            inviting.escrow(connection, self.context, admin.group.group_id, admin.user_id, user_id, carried)

    def invited(self) -> set[tuple[bytes, bytes, int]]:
        """Who can accept whose invite: inviter, invitee, the invite's key. None is stored that nobody can accept."""
        with self.reading() as connection:
            rows = connection.execute("SELECT invite_id, invitee_id FROM invites").fetchall()
            found = [invites.living(connection, row[0], 0) for row in rows]
            assert all(found), "an invite that cannot be accepted"
            return {(each.inviter_id, each.invitee_id, each.invite_key) for each in found if each}

    def banned(self) -> set[tuple[int, bytes]]:
        with self.reading() as connection:
            return {
                (group.group_key, user) for group in self.groups() for user in bans.banned(connection, group.group_key)
            }

    def shown(self) -> Shown:
        """What users would be shown now."""
        found: Shown = set()
        with self.reading() as connection:
            for member in self.memberships():
                group, now = member.group, self.clock.now()
                view = of_group(connection, group, now)
                timed = of_reader(member.member_id, member.joined_after, include_redacted=False)
                rows = connection.execute(
                    f"SELECT sequence_num FROM ({timed.query}) WHERE group_key = :group_key AND {view.hot[0]}"
                    f" AND {timed.condition}",
                    {"group_key": group.group_key, "now": now, **timed.values, **view.bounds(0)},
                )
                found |= {(member.user_id, group.group_key, row[0]) for row in rows}
        return found

    def stored(self) -> set[tuple[int, int]]:
        """Which messages have their bodies still: group's key and number."""
        with self.reading() as connection:
            return {tuple(row) for row in connection.execute("SELECT group_key, sequence_num FROM messages")}
