"""`conclave evidence audit`: who decided what, and that it is noted with what it tells of."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.health import background
from conclave.system import operator_identity
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD, Client, expect
from tests.support.commands import Run, done, refused, runner
from tests.support.server import PATIENCE

HOUR, DAY = 3600, 86_400


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


async def audited(run: Run, *words: str) -> list[dict[str, Any]]:
    result = await asyncio.to_thread(run, "evidence", "audit", "--json", *words)
    return [json.loads(line) for line in done(result).splitlines()]


async def actions(run: Run, *words: str) -> list[str]:
    return [each["action"] for each in await audited(run, *words)]


async def test_an_admin_who_really_changes_the_policy_is_noted_with_the_old_and_the_new_value(
    running: Running, run: Run
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.patch(group, message_expiry_seconds=HOUR)
    await alice.patch(group, alias="no policy", visibility="private")
    await alice.set_expiry(group, -1)
    await expect(bob.set_expiry(group, HOUR), 401, 401)
    await expect(alice.set_expiry(group, -2), 400, 101)
    assert await audited(run) == [], "nothing has changed"
    running.clock.advance(5)
    await alice.patch(group, message_expiry_seconds=HOUR, update_message_expiry=True, group_name="renamed")
    await alice.set_expiry(group, HOUR)
    [entry] = await audited(run)
    assert entry == {
        "id": 1,
        "at": running.clock.now(),
        "actor": "admin alice",
        "action": "policy_changed",
        "subject_id": group,
        "subject": "friends",
        "details": {"changed": {"message_expiry_seconds": [-1, HOUR]}, "admin_id": alice.user_id},
    }


async def test_a_change_that_fails_is_not_noted(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.create_group("taken")
    taken = alice.patch(group, message_expiry_seconds=HOUR, update_message_expiry=True, group_name="taken")
    await expect(taken, 409, 301)
    assert await audited(run) == []


async def test_commands_about_accounts_are_noted_by_name_and_without_the_password(running: Running, run: Run) -> None:
    bob = await running.user("bob")
    password = done(await asyncio.to_thread(run, "user", "reset-password", "bob")).strip()
    for words in (("disable", "bob"), ("enable", "bob"), ("delete", "bob", "--yes")):
        done(await asyncio.to_thread(run, "user", *words))
    assert "no such user" in refused(await asyncio.to_thread(run, "user", "disable", "bob"))
    entries = await audited(run)
    assert [each["action"] for each in entries] == [
        *("account_deleted", "account_enabled", "account_disabled", "password_reset")
    ]
    for each in entries:
        assert (each["subject_id"], each["subject"], each["details"]) == (bob.user_id, "bob", {})
        assert each["actor"] == operator_identity.current()
    assert password not in json.dumps(entries)


async def test_other_settings_at_the_start_and_an_accepted_clock_are_noted(
    config: Config, start_server: StartServer, run: Run, clock: FakeClock
) -> None:
    async with start_server(config):
        pass
    clock.advance(DAY)
    async with start_server(replace(config, message_retention=30 * DAY)) as server:
        [entry] = await audited(run)
        assert (entry["actor"], entry["subject_id"], entry["subject"]) == ("server", None, "")
        assert entry["at"] == clock.now()
        assert entry["details"] == {"changed": {"message_retention": [-1, 30 * DAY]}}
        clock.set_wrong(-HOUR)
        assert "ClockWrongError" in (await asyncio.to_thread(clean_up, RunEnvironment(server.config, clock))).error
        report = await asyncio.to_thread(clean_up, RunEnvironment(server.config, clock), accept_clock=True)
        assert report.error == ""
        accepted = (await audited(run))[0]
        assert (accepted["action"], accepted["actor"]) == ("clock_accepted", operator_identity.current())
        assert "3600 seconds" in accepted["details"]["fault"]
        assert accepted["at"] == clock.now()
        async with asyncio.timeout(PATIENCE):
            while await server.query("SELECT clock_fault FROM server_state") != [("",)]:
                await asyncio.sleep(background.RETRY_SECONDS)
    async with start_server(replace(config, message_retention=30 * DAY)):
        assert len(await audited(run)) == 2, "the same settings again are no change"


async def test_entries_outlive_what_they_speak_of_and_are_found_by_name_and_id(
    config: Config, running: Running, run: Run, clock: FakeClock
) -> None:
    alice, eve = await running.users("alice", "eve")
    first = await alice.create_group("g", expiry=HOUR)
    await alice.post(f"/groups/{first}/delete")
    clock.advance(DAY)
    second = await alice.create_group("g", expiry=2 * HOUR)
    await alice.patch(second, group_name="renamed")
    clock.advance(DAY)
    await alice.set_expiry(second, 3 * HOUR)
    done(await asyncio.to_thread(run, "hold", "add", "--user", "eve", "--reason", "case 17"))
    await eve.post("/delete-account", password=PASSWORD)
    assert [each["subject_id"] for each in await audited(run, "--group", "g")] == [second, first]
    assert [each["subject"] for each in await audited(run, "--group", second)] == ["renamed", "g"]
    assert [each["subject"] for each in await audited(run, "--group", "renamed")] == ["renamed", "g"]
    assert [each["subject"] for each in await audited(run, "--group", first)] == ["g"]
    assert await actions(run, "--user", "eve") == ["user_held"]
    assert await actions(run, "--user", eve.user_id) == ["user_held"]
    assert await actions(run, "--group", "eve") == await actions(run, "--user", "g") == []
    assert await actions(run, "--limit", "1") == ["user_held"]
    assert len(await actions(run, "--since", "1d")) == 3
    assert len(await actions(run, "--since", "23h")) == 2
    shown = done(await asyncio.to_thread(run, "evidence", "audit", "--group", first))
    assert "admin alice" in shown
    assert "message_expiry_seconds from -1 to 3600" in shown


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("--group", "a", "--user", "b"),
            ("--since", "30"),
            ("--since", "-1"),
            ("--limit", "0"),
            ("--group", "\udcff"),
        ),
    ],
)
def test_a_wrong_command_line_is_refused(run: Run, words: tuple[str, ...]) -> None:
    assert run("evidence", "audit", *words).exit_code == 2


def test_only_the_server_creates_a_database(run: Run, config: Config) -> None:
    assert "no such database" in refused(run("evidence", "audit"))
    assert not config.database.exists()


async def test_an_entry_about_a_client_has_no_secret_of_it(running: Running, run: Run) -> None:
    alice: Client = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    await alice.send(group, b"a secret message")
    text = json.dumps(await audited(run))
    assert alice.token not in text
    assert PASSWORD not in text
    assert "secret" not in text


async def test_a_run_lets_go_of_entries_that_are_older_than_keep_audit(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    running.clock.advance(DAY)
    await alice.set_expiry(group, -1)
    running.clock.advance(running.config.retention.keep_audit - DAY)
    done(await asyncio.to_thread(run, "cleanup", "run"))
    assert [each["id"] for each in await audited(run)] == [2, 1], "it is as old as that, not older"
    running.clock.advance(1)
    done(await asyncio.to_thread(run, "cleanup", "run"))
    assert [each["id"] for each in await audited(run)] == [2]
