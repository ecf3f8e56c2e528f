"""What operators do to accounts: refusals, what is printed, and a server that serves meanwhile."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from conclave import app_keys
from conclave.actions import accounts as actions, users as acting
from conclave.actions.command_runner import CommandRunner
from conclave.auth.passwords import hash_password
from conclave.cli import open_store, users as cli_users
from conclave.cli.users import change
from conclave.clock import FakeClock
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.errors import NotFoundError
from conclave.server import duties
from conclave.store.engine import sqlite
from conclave.store.resources import accounts, audit, users
from conclave.store.resources.audit import AuditAction
from tests.conftest import Running, StartServer
from tests.support import stores
from tests.support.client import PASSWORD, Client, encode, expect
from tests.support.listening import listening
from tests.support.server import PATIENCE

Logged = list[MutableMapping[str, Any]]
Run = Callable[..., Result]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged) -> Run:
    """Run a command of `conclave user` on the database of the other fixtures, at their time."""
    monkeypatch.setattr(open_store, "SystemClock", lambda: clock)
    path = tmp_path / "conclave.toml"
    path.write_text(f'database_path = "{config.database}"\n')

    def run(*arguments: str, typed: str | bytes = "") -> Result:
        result = CliRunner().invoke(cli_users.user, [*arguments, "--config", str(path)], input=typed)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def stored(config: Config, clock: FakeClock) -> Iterator[sqlite3.Connection]:
    """A database that no server has open, with three users."""
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        for name, alias in (("alice", "[red]A\u202el\u009bi"), ("bob", "Bjørn 100%"), ("carol", "")):
            users.add(connection, name, hash_password(PASSWORD), alias, clock.now())
        yield connection


def hash_of(connection: sqlite3.Connection, name: str) -> str:
    found = users.credentials(connection, name)
    assert found
    return found[1]


def refused(result: Result) -> str:
    """Check that a command ended with one line, and return that."""
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("conclave: ")
    return line.removeprefix("conclave: ")


@pytest.mark.parametrize("command", ["reset-password", "disable", "enable", "delete", "show", "unblock"])
@pytest.mark.parametrize("name", ["Alice", "nobody", "", "\udcff"])
def test_an_unknown_user_is_told_in_a_line(stored: sqlite3.Connection, run: Run, command: str, name: str) -> None:
    assert "no such user" in refused(run(command, name))


def test_only_the_server_creates_a_database(run: Run, config: Config) -> None:
    for command in (["list"], ["disable", "alice"]):
        assert "no such database" in refused(run(*command))
    assert not config.database.exists()


def test_what_is_no_database_is_told_in_a_line(run: Run, config: Config) -> None:
    config.database.write_bytes(b"something else entirely" * 100)
    assert refused(run("list"))


def test_the_list_for_scripts_is_an_object_a_line(stored: sqlite3.Connection, run: Run, clock: FakeClock) -> None:
    lines = run("list", "--json").stdout.splitlines()
    assert all(line.isascii() for line in lines)
    first, second, third = (json.loads(line) for line in lines)
    assert len(first.pop("user_id")) == 36
    assert first == {
        "username": "alice",
        "alias": "[red]A\u202el\u009bi",
        "created_at": clock.now(),
        "last_used_at": None,
        "groups": 0,
        "sessions": 0,
        "disabled": False,
    }
    assert (second["username"], second["alias"], third["username"]) == ("bob", "Bjørn 100%", "carol")


@pytest.mark.parametrize(
    ("like", "names"),
    [
        ("", ["alice", "bob", "carol"]),
        ("AL", ["alice"]),
        ("BJØRN", ["bob"]),
        ("%", ["bob"]),
        ("_", []),
        ("o", ["bob", "carol"]),
        ("\udcff", []),
    ],
)
def test_the_list_can_be_narrowed_by_name_or_alias(
    stored: sqlite3.Connection, run: Run, like: str, names: list[str]
) -> None:
    assert [json.loads(line)["username"] for line in run("list", "--json", "--like", like).stdout.splitlines()] == names


def test_an_alias_cannot_act_on_the_terminal(stored: sqlite3.Connection, run: Run, logged: Logged) -> None:
    shown = run("list").stdout
    assert r"[red]A\u202el\x9bi" in shown
    assert "Bjørn" in shown
    assert all(each.isprintable() for line in shown.splitlines() for each in line)
    assert logged == []


def test_a_new_password_is_all_that_is_printed(stored: sqlite3.Connection, run: Run, logged: Logged) -> None:
    first, second = run("reset-password", "bob"), run("reset-password", "bob")
    assert first.exit_code == second.exit_code == 0
    [password] = first.stdout.splitlines()
    assert len(password) == 23
    assert first.stdout != second.stdout
    assert password not in first.stderr
    assert logged == []


@pytest.mark.parametrize("typed", ["", "\n", "seven77\n", "seven77", "\n12345678\n", b"\xff2345678\n"])
def test_a_bad_password_changes_nothing(stored: sqlite3.Connection, run: Run, typed: str | bytes) -> None:
    before = hash_of(stored, "bob")
    assert "the password" in refused(run("reset-password", "bob", "--prompt", typed=typed))
    assert hash_of(stored, "bob") == before


def test_a_password_comes_from_standard_input_but_never_from_an_argument(stored: sqlite3.Connection, run: Run) -> None:
    before = hash_of(stored, "bob")
    assert run("reset-password", "bob", "new password").exit_code == 2
    assert hash_of(stored, "bob") == before
    done = run("reset-password", "bob", "--prompt", typed="påssord \nsecond line\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "påssord" not in done.stderr
    assert hash_of(stored, "bob") != before


def test_without_a_terminal_a_deletion_needs_yes(stored: sqlite3.Connection, run: Run) -> None:
    assert "--yes" in refused(run("delete", "bob", typed="y\n"))
    assert users.find_by_name(stored, "bob")
    assert run("delete", "bob", "--yes").exit_code == 0
    assert "no such user" in refused(run("delete", "bob", "--yes"))
    assert [each.username for each in accounts.list_all(stored, 0)] == ["alice", "carol"]


def test_an_account_that_goes_meanwhile_is_told_in_a_line(
    stored: sqlite3.Connection, config: Config, clock: FakeClock, logged: Logged
) -> None:
    outside = CommandRunner(config, clock)
    gone, context = outside.read(acting.by_name, "bob").user_id, outside.context()

    def remove(connection: sqlite3.Connection, user_id: bytes) -> None:
        actions.remove(connection, context, user_id)

    change(outside, AuditAction.ACCOUNT_DELETED, remove, gone)
    for act in (actions.disable, actions.enable):
        with pytest.raises(NotFoundError, match="no such user"):
            change(outside, AuditAction.ACCOUNT_ENABLED, act, gone)
    with pytest.raises(NotFoundError, match="no such user"):
        change(outside, AuditAction.ACCOUNT_DELETED, remove, gone)
    with pytest.raises(NotFoundError, match="no such user"):
        change(outside, AuditAction.PASSWORD_RESET, actions.reset_password, gone, PASSWORD)
    assert logged == []


def test_what_fails_leaves_neither_a_change_nor_news(stored: sqlite3.Connection, config: Config) -> None:
    with closing(sqlite.connect(config.database)) as connection:
        user_id = acting.by_name(connection, "bob").user_id
        connection.execute(
            "INSERT INTO sessions (public_id, token_hash, user_id, created_at, last_used_at, expires_at)"
            " VALUES (x'01', x'02', ?, 0, 0, 0)",
            (user_id,),
        )
        with suppress(LookupError), sqlite.write_transaction(connection):
            actions.disable(connection, user_id)
            raise LookupError
        assert users.credentials(connection, "bob")
        assert not connection.execute("SELECT * FROM outbox").fetchall()
        with sqlite.write_transaction(connection):
            actions.disable(connection, user_id)
        assert not users.credentials(connection, "bob")
        assert len(connection.execute("SELECT * FROM outbox").fetchall()) == 1


async def test_the_list_counts_groups_and_living_sessions(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.join(await alice.create_group("one"))
    await bob.create_group("two")
    running.clock.advance(60)
    await bob.login("bob")
    running.clock.advance(running.config.token_ttl_seconds - 60)
    listed = [json.loads(line) for line in (await asyncio.to_thread(run, "list", "--json")).stdout.splitlines()]
    assert [(each["groups"], each["sessions"]) for each in listed] == [(1, 0), (2, 1)]
    assert [each["last_used_at"] - each["created_at"] for each in listed] == [0, 60]


async def test_a_session_that_an_operator_ended_does_not_come_back_with_the_uses_in_memory(
    config: Config, start_server: StartServer, run: Run
) -> None:
    async with start_server(config) as server:
        alice, bob = await server.users("alice", "bob")
        server.clock.advance(30)
        await alice.get("/me")
        await bob.get("/me")
        assert len(server.app[app_keys.ACTIVITY].unstored()) == 2
        assert (await asyncio.to_thread(run, "disable", "alice")).exit_code == 0
        assert (await asyncio.to_thread(run, "reset-password", "bob")).exit_code == 0
        await expect(alice.get("/me"), 401, 202)
        await expect(bob.get("/me"), 401, 202)
    async with start_server(config) as server:
        assert await server.query("SELECT * FROM sessions") == []
        for client in (alice, bob):
            await expect(Client(server.http, server.url, client.token).get("/me"), 401, 202)


async def test_a_disabled_member_holds_messages_back_until_deleted(
    config: Config, start_server: StartServer, run: Run
) -> None:
    async with start_server(replace(config, message_retention=0)) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.send(group)
        await alice.numbers(group)
        await server.settle()
        floor = "SELECT min(watermark), count(*) FROM members"
        await asyncio.to_thread(run, "disable", "bob")
        assert await server.query(floor) == [(0, 2)]
        await asyncio.to_thread(run, "delete", "bob", "--yes")
        assert await server.query(floor) == [(1, 1)]
        assert await server.query("SELECT floor_seq FROM groups") == [(1,)]


async def test_those_who_remain_hear_once_of_an_account_that_an_operator_deletes(
    config: Config, start_server: StartServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "OUTBOX_INTERVAL_SECONDS", 0.05)
    async with start_server(config) as server:
        alice, bob, carol, eve = await server.users("alice", "bob", "carol", "eve")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.post(
            f"/groups/{group}/escrow-invite",
            invitee_id=carol.user_id,
            **dict.fromkeys(("commit_message", "welcome_message", "group_info"), encode(b"x")),
        )
        async with (
            listening(alice) as own,
            listening(bob) as member,
            listening(carol) as invitee,
            listening(eve) as stranger,
        ):
            assert (await asyncio.to_thread(run, "delete", "alice", "--yes")).exit_code == 0
            await own.ended()
            await asyncio.sleep(0.3)
            assert member.waiting() == [
                ("member_removed", {"group_id": group, "removed_user_id": alice.user_id}),
                ("group_update", {"group_id": group, "update_type": "role_change"}),
            ]
            assert invitee.waiting() == [("invite_cancelled", {"group_id": group})]
            assert own.waiting() == stranger.waiting() == []
        assert await server.query("SELECT * FROM outbox") == []
        assert [each["username"] for each in (await bob.get("/groups"))["groups"][0]["members"]] == ["bob"]


async def test_those_whom_a_disabled_user_has_invited_hear_that_they_are_not_any_more(
    config: Config, start_server: StartServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "OUTBOX_INTERVAL_SECONDS", 0.05)
    async with start_server(config) as server:
        alice, bob, carol = await server.users("alice", "bob", "carol")
        group = await alice.create_group("g")
        await bob.join(group)
        invite = await alice.invite(group, carol)
        async with listening(alice) as own, listening(carol) as invitee:
            assert (await asyncio.to_thread(run, "disable", "alice")).exit_code == 0
            assert await invitee.next() == ("invite_cancelled", {"group_id": group})
            await own.ended()
            assert own.waiting() == []
        await expect(carol.accept(invite), 404, 300)
        assert (await asyncio.to_thread(run, "enable", "alice")).exit_code == 0
        assert await carol.invited_to() == []
        assert sorted(await bob.roles(group)) == ["alice", "bob"]


def test_a_new_account_has_the_password_that_is_printed(stored: sqlite3.Connection, run: Run, logged: Logged) -> None:
    result = run("create", "dora", "--alias", "Dora D.")
    [password] = result.stdout.splitlines()
    assert (result.exit_code, len(password)) == (0, 23)
    PasswordHasher().verify(hash_of(stored, "dora"), password)
    assert acting.by_name(stored, "dora").alias == "Dora D."
    assert logged == []
    [entry] = audit.last(stored, 9)
    assert (entry.action, entry.subject.name) == ("account_created", "dora")


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_new_account_can_get_a_password_from_standard_input(stored: sqlite3.Connection, run: Run, end: str) -> None:
    """However the machine from which it is piped ends a line."""
    result = run("create", "dora", "--prompt", typed=f"battery staple{end}")
    assert (result.exit_code, result.stdout) == (0, "")
    PasswordHasher().verify(hash_of(stored, "dora"), "battery staple")
    assert run("create", "erik", "a password").exit_code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["alice"], "alice: this name is taken"),
        (["_dora"], "the name must be"),
        ([""], "the name must be"),
        (["\udcff"], "the name is not UTF-8"),
        (["dora", "--alias", "a\nb"], "the alias must have"),
    ],
)
def test_an_account_that_cannot_be_is_refused_in_a_line(
    stored: sqlite3.Connection, run: Run, words: list[str], told: str
) -> None:
    before = len(accounts.list_all(stored, 0))
    assert refused(run("create", *words)).startswith(told)
    assert len(accounts.list_all(stored, 0)) == before
    assert audit.last(stored, 9) == []


async def test_show_tells_what_is_stored_of_an_account_and_no_content(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for body in (b"secret 1", b"secret 22"):
        await alice.post(f"/groups/{group}/messages", mls_message=encode(body))
    told = json.loads((await asyncio.to_thread(run, "show", "alice", "--json")).stdout)
    assert told["user_id"] == alice.user_id
    wanted = {"messages": 2, "message_bytes": 17, "groups": 1, "sessions": 1, "holds": []}
    assert told | wanted | {"archived_groups": 0, "disabled": False, "last_used_at": running.clock.now()} == told
    shown = (await asyncio.to_thread(run, "show", "alice")).stdout
    assert "2 messages with 17 bytes" in shown
    assert "secret" not in shown


async def test_unblock_lifts_the_limit_on_wrong_passwords_for_one_name(
    config: Config, start_server: StartServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "OUTBOX_INTERVAL_SECONDS", 0.02)
    async with start_server(replace(config, limits=LimitsConfig(login_failures=2))) as server:
        clients = await server.users("alice", "bob")
        for client, name in zip(clients, ("alice", "bob"), strict=True):
            for _ in range(2):
                await expect(client.post("/login", username=name, password="wrong password"), 401, 202)
            await expect(client.post("/login", username=name, password=PASSWORD), 429, 100)
        result = await asyncio.to_thread(run, "unblock", "alice")
        assert (result.exit_code, result.stderr) == (0, "")
        async with asyncio.timeout(PATIENCE):
            while await server.query("SELECT 1 FROM outbox"):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert (await clients[0].post("/login", username="alice", password=PASSWORD))["token"]
        await expect(clients[1].post("/login", username="bob", password=PASSWORD), 429, 100)


def test_unblock_says_that_a_disabled_user_stays_so(stored: sqlite3.Connection, run: Run) -> None:
    run("disable", "bob")
    assert "`conclave user enable`" in run("unblock", "bob").stderr
    run("unblock", "bob")
    assert len(stored.execute("SELECT * FROM outbox").fetchall()) == 1, "told twice, it waits once"
    assert not users.credentials(stored, "bob")


async def test_an_account_that_an_operator_creates_can_log_in_where_registration_is_closed(
    config: Config, start_server: StartServer, run: Run
) -> None:
    async with start_server(replace(config, registration_enabled=False)) as server:
        password = (await asyncio.to_thread(run, "create", "dora")).stdout.strip()
        token = (await Client(server.http, server.url).post("/login", username="dora", password=password))["token"]
        assert (await Client(server.http, server.url, token).get("/me"))["username"] == "dora"
