"""Random histories of a server. After each step, whatever it answers is compared with what the store alone says."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from uuid import UUID

from conclave import app_keys
from conclave.actions import accounts
from conclave.auth.passwords import hash_password
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.errors import NotMemberError
from conclave.store import bodies
from conclave.store.archive import restore
from conclave.store.archive.restore import ArchivedMessage
from conclave.store.engine import sqlite
from conclave.store.resources.state import PolicyFrozenError
from conclave.wire.formats import Format
from tests.conftest import StartServer
from tests.support.alone import StoreAlone, once
from tests.support.archive import Mover
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, RefusedError
from tests.support.server import until
from tests.support.world import DisagreementError, World, outcome

DAY = 86_400
EXPIRIES = (-1, -1, 0, 0, 30, 60, 2 * DAY)
RETENTIONS = (-1, -1, 0, 40, 3 * DAY)
NAMES = ("alice", "bob", "carol", "dave")
JUMP = 5_000
"""A wrong clock goes ahead by 5,000 seconds: more than is let pass as a small step."""

MANY = 4_200
"""A burst of 4,200 touches: more than the store keeps."""


class History(World):
    """What happens to a server, at random."""

    def __init__(self, start: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int) -> None:
        """Every third history has an archive, which the engine without Spark does not know: it has no runs."""
        super().__init__(start, config, clock, cleaner, seed)
        self.favourite = ""
        self.archived = 0
        self._moves = seed % 3 == 0 and config.cleanup.engine == "sql"
        self._timed = (0.0, 0.02, 0.2)[seed % 3]

    async def play(self, steps: int) -> None:
        """Play a history. Raises DisagreementError."""
        try:
            await self._open()
            for name in NAMES:
                await self.register(name)
            for expiry in (-1, 60):
                await self.create_group(expiry)
            await self.compare()
            for _ in range(steps):
                step = self.chance.choice(self.steps())
                self.told.append(step.__name__)
                await step()
                await self.compare()
        except RefusedError as refused:  # of what the store would not refuse
            raise DisagreementError(f"{refused}; {self.told}") from refused
        finally:
            await self._server.aclose()

    def steps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What may happen, the likelier the more often it is named."""
        often = [self.send, self.send, self.send_together, self.pass_time, self.to_an_expiry, self.change_policy]
        others = [self.come_or_go, self.come_or_go, self.act_as_admin, self.end_session, self.operate]
        others += [self.read_receipts, self.to_a_timers_end] if self._timed else []
        others += [self.take_back]
        rare = [self.restart, self.delete, self.delete, self.burst, self.to_a_sessions_end]
        midway = [self.meet_midway, self.meet_midway]
        runs = [self.archive] * 4 if self._moves else [self.clean_up, self.clean_up, self.wrong_clock]
        favourites = [getattr(self, self.favourite)] * 20 if self.favourite else []
        return [*often, *often, *others, *others, *midway, *runs, *rare, *favourites]

    async def restart(self) -> None:
        """Start anew, perhaps with another retention for all groups."""
        await self._server.aclose()
        former, self.config = self.config, replace(self.config, message_retention=self.chance.choice(RETENTIONS))
        try:
            await self._open()
        except PolicyFrozenError:
            self.config = former
            await self._open()

    async def send(self) -> None:
        await self._send(1)

    async def send_together(self) -> None:
        await self._send(self.chance.randint(2, 8))

    async def _send(self, count: int, *senders: tuple[Client, str]) -> None:
        """Send as ``senders``, or any so many, members or not, at the same time."""
        senders = senders or tuple((self.chance.choice(self.sessions), self._group()) for _ in range(count))
        async with StoreAlone(self.running.app) as alone:
            told = [_sent(alone, *each) for each in senders]
            last = {group: alone.last(group) for group in self.groups}
        size = self.chance.choice([10, 100, 100, 700])
        found = await asyncio.gather(
            *(outcome(client.send(group, self._body(size), self._seconds())) for client, group in senders)
        )
        refused = [None if isinstance(each, int) else each for each in found]
        self._expect(refused, told, f"sends to {[group for _, group in senders]}")
        for group in self.groups:
            numbers = [
                number
                for (_, to), number in zip(senders, found, strict=True)
                if to == group and isinstance(number, int)
            ]
            self._expect(sorted(numbers), list(range(last[group] + 1, last[group] + 1 + len(numbers))), "numbers")

    def _seconds(self) -> int:
        """Return after how many seconds a message destroys itself; most do not."""
        return self.chance.choice([1, 20, 60]) if self.chance.random() < self._timed else 0

    async def read_receipts(self) -> None:
        """Have some say what they have read."""
        for client in self.chance.sample(self.sessions, min(3, len(self.sessions))):
            group = self._group()
            await self._try(client.read(group, self.chance.randint(1, 2 + await self._last(group))))

    async def take_back(self) -> None:
        """Have some take messages back, own ones or others."""
        for client in self.chance.sample(self.sessions, min(3, len(self.sessions))):
            group = self._group()
            await self._try(client.take_back(group, self.chance.randint(1, 1 + await self._last(group))))

    async def _last(self, group: str) -> int:
        async with StoreAlone(self.running.app) as alone:
            return alone.last(group)

    async def to_a_timers_end(self) -> None:
        """Go to the last second of some timer, compare, and go to the first without it."""
        await self._send_timed(self._group())
        await self.read_receipts()
        async with StoreAlone(self.running.app) as alone:
            found = alone.query(
                "SELECT redact_at FROM timers WHERE redact_at > ?", self.running.app[app_keys.CLOCK].now()
            )
        if found:
            self.clock.seconds = max(self.clock.seconds, self.chance.choice(found)[0] - 1)
            await self.compare()
            self.clock.advance(1)

    async def _send_timed(self, group: str) -> None:
        for client in await self._living():
            await self._try(client.send(group, self._body(20), self.chance.choice([1, 20, 60])))

    def _body(self, size: int) -> bytes:
        self._count += 1
        return b"%d:" % self._count + self.chance.randbytes(size)

    async def pass_time(self) -> None:
        """Let time pass, or step back a little, as clocks do that are set right."""
        if self.chance.random() < 0.3:
            self.clock.set_wrong(-self.chance.randint(1, 20))
        else:
            self.clock.advance(self.chance.choice([1, 5, 29, 61, DAY]))

    async def to_an_expiry(self) -> None:
        """Go to the last second of some message, compare, and go to the first without it."""
        group = self._group()
        for client in await self._living():
            await self._try(client.set_expiry(group, self.chance.choice([20, 60])))
            await self._send(1, (client, group))
        await self.compare()
        async with StoreAlone(self.running.app) as alone:
            found = alone.query(
                "SELECT messages.created_at + message_expiry_seconds AS last FROM messages JOIN groups"
                " USING (group_key) WHERE message_expiry_seconds > 0 AND last >= ?"
                " AND messages.created_at >= expired_before",
                self.running.app[app_keys.CLOCK].now(),
            )
        if found:
            self.clock.seconds = max(self.clock.seconds, self.chance.choice(found)[0])
            await self.compare()
            self.clock.advance(1)

    async def change_policy(self) -> None:
        for each in (await self._living())[: self.chance.randint(1, 3)]:
            await self._try(each.set_expiry(self._group(), self.chance.choice(EXPIRIES)))

    async def come_or_go(self) -> None:
        """Have somebody join or leave, who sends after that; or others before that."""
        client, group = await self._somebody(), self._group()
        if self.chance.random() < 0.5:
            await self._send(0, *((each, group) for each in await self._living()))
        await self._try(client.join(group) if self.chance.random() < 0.6 else client.leave(group))
        if self.chance.random() < 0.5:
            await self._send(0, (client, group))

    async def act_as_admin(self) -> None:
        admin, other, group = await self._somebody(), await self._somebody(), self._group()
        action = self.chance.choice(["promote", "demote", "remove", "ban", "unban"])
        more = {"commit_message": base64.b64encode(self._body(50)).decode()} if action == "remove" else {}
        await self._try(admin.act(action, group, other, **more))

    async def end_session(self) -> None:
        """Log in once more; log out, revoke or change the password, with the old session or the new one."""
        client = await self._somebody()
        another = await self._login(client.user_id)
        await self.compare()
        kind = self.chance.choice(["nothing", "logout", "revoke", "password"])
        if kind == "logout":
            await self.chance.choice([client, another]).post("/logout")
        elif kind == "revoke":
            listed = (await client.get("/sessions"))["sessions"]
            await client.call("DELETE", f"/sessions/{self.chance.choice(listed)['id']}")
        elif kind == "password":
            await client.post("/change-password", current_password=PASSWORD, new_password=PASSWORD)

    async def operate(self) -> None:
        """Do what an operator's command does, in a transaction of no server's."""
        client = await self._somebody()
        user_id, outside = UUID(client.user_id).bytes, self._outside
        kind = self.chance.choice(["disable", "disable", "reset"])
        if kind == "disable":
            outside.write(accounts.disable, user_id)
            await self.compare()
            outside.write(accounts.enable, user_id)
        else:
            outside.write(accounts.reset_password, user_id, hash_password(PASSWORD))

    async def delete(self) -> None:
        """Delete a group, or an account by its user or an operator: of a member, or of one who has left all groups."""
        client = await self._somebody()
        if self.chance.random() < 0.3:
            await self._try(client.post(f"/groups/{self._group()}/delete"))
            await self.compare()
            await self.create_group(self.chance.choice(EXPIRIES))
            return
        if self.chance.random() < 0.7:
            await self._try(client.send(self._group(), self._body(20)))
            for group in self.groups:
                await self._try(client.leave(group))
            await self.compare()
        if self.chance.random() < 0.5:
            await client.post("/delete-account", password=PASSWORD)
        else:
            self._outside.write(accounts.remove, self._outside.context(), UUID(client.user_id).bytes)
        await self.compare()
        self._count += 1
        await self.register(f"user_{self._count}")

    async def burst(self) -> None:
        """Touch a group that nobody knows so often that the store forgets other touches; one of them before."""
        once(self.config.database, "UPDATE groups SET gone_below = min(last_seq, gone_below + 1)")
        with closing(sqlite.connect(self.config.database)) as connection, sqlite.write_transaction(connection):
            connection.executemany("INSERT INTO touches (group_key) VALUES (?)", [(10**6,)] * MANY)

    async def archive(self) -> None:
        """Move some of a group to the archive, as a run does in steps; or take it back."""
        mover, group = Mover(self.config), self._group()
        async with StoreAlone(self.running.app) as alone:
            # What destroys itself does not move, nor what follows.
            found = alone.query(
                "SELECT ifnull((SELECT min(sequence_num) - 1 FROM self_destructing"
                " WHERE self_destructing.group_key = groups.group_key), last_seq), archived_seq FROM groups"
                " WHERE group_id = ?",
                UUID(group).bytes,
            )
        if not found:
            return
        last, border = found[0]
        if border and self.chance.random() < 0.5:
            self._restore(mover, group, border)
            return
        border = self.chance.randint(border, last)
        rows = mover.append(group, border)
        await self.compare()
        mover.switch(group, border, rows)
        await self.compare()
        mover.drop_copies(group)

    def _restore(self, mover: Mover, group: str, border: int) -> None:
        """Take a group's messages back, as the command does."""
        key, table = mover.key(group), mover.table() if mover.version() else None
        rows = [row for row in table.to_pyarrow_table().to_pylist() if row["group_key"] == key] if table else []
        archived = [
            ArchivedMessage(
                row["sequence_num"], row["sender_id"], row["is_commit"], row["created_at"], row["mls_message"]
            )
            for row in rows
            if row["sequence_num"] <= border
        ]
        with closing(sqlite.connect(self.config.database)) as connection:
            with sqlite.write_transaction(connection):
                restore.store_copies(connection, key, archived)
            with sqlite.write_transaction(connection):
                restore.switch_back(connection, key, len(archived))
                connection.execute("DELETE FROM archive_parts WHERE group_key = ?", (key,))
        if archived:
            mover.delete(f"group_key = {key}")
            once(self.config.database, "UPDATE archive_state SET version = ?", mover.version())

    async def clean_up(self, *, accept_clock: bool = False) -> None:
        """Do a run in another process; one of Spark a day later, so that there is something to move."""
        if self.config.cleanup.engine == "spark":
            self.clock.advance(DAY + 1)
        await self.running.settle()
        report = await asyncio.to_thread(
            self._cleaner.try_run, self.config, self.clock.now(), self.clock.set_by, accept_clock=accept_clock
        )
        self.told.append(report["error"])
        self.archived += report.get("archived", 0)
        await self.running.app[app_keys.CLOCK_WATCH].check()

    async def meet_midway(self) -> None:
        """Have something else happen after a page or a session was read, and before that is remembered."""
        group = self._group()
        alone = StoreAlone(self.running.app)
        rows = alone.query("SELECT group_key FROM groups WHERE group_id = ?", UUID(group).bytes)
        members = [each for each in await self._living() if alone.is_member(each.token, group)]
        await alone.__aexit__()
        if not rows or not members:
            return
        reader, other = self.chance.choice(members), self.chance.choice(members)
        once(self.config.database, "INSERT INTO touches (group_key) VALUES (?)", rows[0][0])
        self._meanwhile = self.chance.choice(
            [
                lambda: self._try(other.send(group, self._body(30))),
                lambda: self._try(other.send(group, self._body(30), 20)),
                lambda: self._try(reader.read(group, 10**6)),
                lambda: self._try(other.post(f"/groups/{group}/commit", commit_message="YWJj")),
                lambda: self._try(reader.leave(group)),
                lambda: self._expire(group),
                lambda: self._drop(group),
            ]
        )
        await self.ask(reader, group, 0, 500, self.chance.choice(list(Format)))
        self._meanwhile = None

    async def _expire(self, group: str) -> None:
        """Have another process raise a mark over all that is there."""
        once(
            self.config.database,
            "UPDATE groups SET expired_before = max(expired_before, ?) WHERE group_id = ?",
            self.running.app[app_keys.CLOCK].now() + 1,
            UUID(group).bytes,
        )

    async def _drop(self, group: str) -> None:
        """Have another process erase messages of a group as too many were fetched."""
        key = Mover(self.config).key(group)
        with closing(sqlite.connect(self.config.database)) as connection, sqlite.write_transaction(connection):
            connection.execute("UPDATE groups SET gone_below = last_seq WHERE group_key = ?", (key,))
            ids = [row[0] for row in connection.execute("SELECT message_id FROM messages WHERE group_key = ?", (key,))]
            connection.execute("DELETE FROM messages WHERE group_key = ?", (key,))
            bodies.erase(connection, ids)

    async def wrong_clock(self) -> None:
        """Have the clock go ahead and back, and be accepted; what was stored meanwhile lies ahead until then."""
        self.clock.set_wrong(JUMP)
        await self._send(2)
        await self.compare()
        await self._write_activity()
        if self.chance.random() < 0.5:
            await self.running.app[app_keys.CLOCK_WATCH].record()
        await self.compare()
        self.clock.set_wrong(-JUMP)
        await self.compare()
        await self.clean_up(accept_clock=True)
        await self.compare()
        if self.chance.random() < 0.7:
            await self.to_a_sessions_end()

    async def _write_activity(self) -> None:
        """Have the store learn when sessions were used."""
        activity = self.running.app[app_keys.ACTIVITY]
        activity.urgent.set()
        await until(lambda: not activity.unstored())

    async def to_a_sessions_end(self) -> None:
        """Go to the last second of some session, or the first without it: none is used meanwhile."""
        if self.chance.random() < 0.5:
            await self._write_activity()
        if self.chance.random() < 0.5:
            await self.compare()
            self.clock.advance(self.chance.randint(1, 500))
            await self.compare()
            await self._write_activity()
        async with StoreAlone(self.running.app) as alone:
            ends = [
                self.running.app[app_keys.ACTIVITY].expires_at(found)
                for client in self.sessions
                if (found := alone.session(client.token))
            ]
        if ends:
            self.clock.seconds = max(self.clock.seconds, self.chance.choice(ends) - self.chance.choice([0, 0, 1]))


def _sent(alone: StoreAlone, client: Client, group: str) -> tuple[int, int] | None:
    """How a send is to be refused, if it is."""
    if alone.session(client.token) is None:
        return alone.refusal(client.token)
    return None if alone.is_member(client.token, group) else (NotMemberError.status, int(NotMemberError.code))
