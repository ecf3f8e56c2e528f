"""The experiment: what it erased cannot be opened, what stays can, and all of it is gone without a trace."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from marshmallow import ValidationError

from conclave.actions import accounts
from conclave.actions.command_runner import CommandRunner
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import KEYS, Config
from conclave.config.vault import VaultConfig
from conclave.keys.inspection import Inspection
from conclave.proof import experiment, keys
from conclave.proof.experiment import ROUNDS, Experiment, ExperimentError
from conclave.proof.findings import ProofPart
from conclave.retention.resolve import Lifetimes
from conclave.store import bodies, keyring, message_keys
from conclave.store.engine import sqlite
from conclave.store.resources import messages, state
from conclave.system import locks
from conclave.wire.fields import NAME_RULE
from spark import run
from spark.environment import RunEnvironment
from tests.proof.stores import command, findings
from tests.support import stores
from tests.support.client import Client
from tests.support.failpoints import EXPERIMENT_POINTS
from tests.support.listening import listening
from tests.support.server import ServerProcess, conclave

SETTINGS = '[cleanup]\nengine = "sql"\ndisk_reserve = "1m"\n'
NOW = 1_700_000_000
DAY = 86_400


class Laboratory:
    """A store that has been served, with runs on it in this process."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        cleanup = CleanupConfig(engine="sql", disk_reserve=0)
        vault = VaultConfig(copies=(str(folder / "copy"),))
        self.config = Config(database_path=str(folder / "hot.db"), cleanup=cleanup, vault=vault, **settings)
        self.clock = FakeClock(NOW)
        self.runs = 0
        stores.prepare(self.config.database)
        self.config.data.mkdir()
        keyring.open_to_serve(self.config.database, self.config.keys_path).close()
        with closing(sqlite.connect(self.config.database)) as connection, sqlite.write_transaction(connection):
            state.begin_serving(connection, self.config.policy, self.clock.read())

    def clean_up(self) -> str:
        self.runs += 1
        with closing(RunEnvironment(self.config, self.clock)) as engine:
            return run.clean_up(engine).error

    def experiment(self, clean_up: Callable[[], str] | None = None) -> Experiment:
        outside = CommandRunner(self.config, self.clock, with_keys=True)
        return Experiment(self.config, outside, clean_up or self.clean_up)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return [tuple(each) for each in connection.execute(sql)]

    def expect_empty(self) -> None:
        for table in ("users", "groups", "members", "messages", "message_bodies", "tombstones", "user_tombstones"):
            assert self.query(f"SELECT count(*) FROM {table}") == [(0,)], table
        for folder in (self.config.vault_path, *self.config.vault_copies):
            assert not (folder / KEYS).exists() or Inspection(folder / KEYS).blocks() == []


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def found_in(part: ProofPart) -> set[tuple[str, str]]:
    """Return the kinds of the findings, and the files: folder and name."""
    return {(str(each.kind), "/".join(Path(each.path).parts[-2:])) for each in part.findings}


def test_what_was_erased_cannot_be_opened_and_what_stays_is_found(laboratory: Laboratory) -> None:
    part = laboratory.experiment().run()
    assert (part.findings, part.kept, part.notes) == ([], [], [])
    assert part.looked_at["erased messages"] == 2 * ROUNDS
    assert part.looked_at["messages that stay"] == ROUNDS
    assert part.looked_at["secrets of what was erased"] > 2 * ROUNDS + 20, "their keys, and all nodes up to the roots"
    assert part.looked_at["files"] >= 2, "the key file and its copy"
    laboratory.expect_empty()
    examined = ProofPart("key file")
    keys.examine(examined, laboratory.config)
    assert examined.findings == []


def early(laboratory: Laboratory, place: Path) -> Callable[[], str]:
    """A run before which somebody copies the keys."""

    def clean_up() -> str:
        if not laboratory.runs:
            place.write_bytes(laboratory.config.keys_path.read_bytes())
        return laboratory.clean_up()

    return clean_up


@pytest.mark.parametrize("name", ["hot.vault/keys.bak", "copy/keys-old"])
def test_keys_beside_the_key_file_or_a_copy_are_found(laboratory: Laboratory, tmp_path: Path, name: str) -> None:
    laboratory.clean_up()  # makes the copy's folder
    laboratory.runs = 0
    part = laboratory.experiment(early(laboratory, tmp_path / name)).run()
    assert found_in(part) == {("keys", name)}
    assert all(each.offset for each in part.findings)


def test_a_copy_that_is_taken_away_after_the_run_proves_nothing(laboratory: Laboratory, tmp_path: Path) -> None:
    def clean_up() -> str:
        error = laboratory.clean_up()
        (tmp_path / "copy" / KEYS).unlink()
        return error

    assert found_in(laboratory.experiment(clean_up).run()) == {("blind", "copy/keys")}


def test_a_run_that_erases_nothing_is_no_proof(laboratory: Laboratory) -> None:
    part = laboratory.experiment(lambda: "").run()
    [finding] = part.findings
    assert finding.kind == "blind"
    assert finding.told.startswith(f"the run has not erased {2 * ROUNDS} ")
    laboratory.clean_up()
    laboratory.expect_empty()


def test_a_run_that_leaves_the_keys_is_found(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(message_keys, "pending_erasures", lambda _: None)
        part = laboratory.experiment().run()
    assert found_in(part) == {("keys", "hot.vault/keys"), ("keys", "copy/keys")}
    assert part.findings[0].told == f"has the keys of {2 * ROUNDS} erased messages of the experiment"
    assert [each.offset is None for each in part.findings] == [True, *[False] * (len(part.findings) - 1)]
    assert len(part.findings) > 1, "the roots of both groups are there"
    laboratory.clean_up()
    laboratory.expect_empty()


def test_a_search_that_does_not_find_what_is_there_is_no_proof(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment._secrets_to_key
    monkeypatch.setattr(experiment, "_secrets_to_key", lambda *its: [secrets.token_bytes(32) for _ in path(*its)])
    assert found_in(laboratory.experiment().run()) == {("blind", "hot.vault/keys"), ("blind", "copy/keys")}


@pytest.mark.parametrize("blind", ["cannot be decrypted", "are not served"])
def test_what_stays_has_to_be_opened_and_served(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, blind: str
) -> None:
    page, decrypted = messages.read_page, bodies.decrypt
    if blind == "are not served":
        monkeypatch.setattr(messages, "read_page", lambda *its, **more: replace(page(*its, **more), messages=[]))
    else:
        nothing = lambda *its: decrypted(*its) if len(its[2]) > 1 else [None]  # noqa: E731
        monkeypatch.setattr(bodies, "decrypt", nothing)
    part = laboratory.experiment().run()
    assert [blind in each.told for each in part.findings] == [True]
    assert part.findings[0].kind == "blind"


@pytest.mark.parametrize("retention", [0, 30, 3600])
def test_what_stays_is_fetched_by_nobody_and_not_looked_for_once_it_has_expired(tmp_path: Path, retention: int) -> None:
    laboratory = Laboratory(tmp_path, message_retention=retention)
    part = laboratory.experiment().run()
    assert part.findings == []
    assert part.notes == ["the staying messages have expired meanwhile, so the control search is skipped"] * (
        retention == 30
    )
    laboratory.expect_empty()


def test_a_run_that_fails_ends_the_experiment_and_leaves_nothing_but_its_tombstones(laboratory: Laboratory) -> None:
    with pytest.raises(ExperimentError, match="the run failed: full"):
        laboratory.experiment(lambda: "full").run()
    assert laboratory.query("SELECT count(*) FROM users") == laboratory.query("SELECT count(*) FROM groups") == [(0,)]
    laboratory.clean_up()
    laboratory.expect_empty()


def test_no_second_experiment_is_done_at_the_same_time(laboratory: Laboratory) -> None:
    held = locks.hold_inode(laboratory.config.database, experiment._LOCK)
    with held, pytest.raises(ExperimentError, match="another experiment"):
        laboratory.experiment().run()


def test_accounts_that_only_look_like_those_of_an_experiment_are_left_alone(laboratory: Laboratory) -> None:
    outside = CommandRunner(laboratory.config, laboratory.clock)
    outside.write(accounts.register, outside.context(), "erasure experiment mine", "$argon2id$", "")
    laboratory.experiment().run()
    assert laboratory.query("SELECT username FROM users") == [("erasure experiment mine",)]


def test_a_least_lifetime_keeps_nothing_but_what_had_to_stay(tmp_path: Path) -> None:
    """What is erased is stored as of a time at which it may be."""
    default = Lifetimes(min_lifetime=DAY)
    laboratory = Laboratory(tmp_path, retention=RetentionConfig(default_policy=default))
    part = laboratory.experiment().run()
    assert part.findings == []
    assert part.notes == ["the staying messages are deleted, and erased once their min_lifetime is over"]
    assert laboratory.query("SELECT count(*) FROM users") == laboratory.query("SELECT count(*) FROM groups") == [(0,)]
    assert laboratory.query("SELECT count(*) FROM messages") == [(ROUNDS,)]
    laboratory.clock.advance(DAY + 1)
    assert laboratory.clean_up() == ""
    laboratory.expect_empty()


def test_where_nothing_is_erased_or_was_served_no_experiment_is_done(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, retention=RetentionConfig(enabled=False))
    [note] = laboratory.experiment().run().notes
    assert "nothing is erased" in note
    with closing(sqlite.connect(laboratory.config.database)) as connection, sqlite.write_transaction(connection):
        connection.execute("DELETE FROM key_state")
    [note] = laboratory.experiment().run().notes
    assert "has not been used by a server yet" in note
    assert laboratory.runs == 0
    laboratory.expect_empty()


def test_nobody_can_take_the_name_of_an_experiment() -> None:
    with pytest.raises(ValidationError):
        NAME_RULE(experiment._NAME + "keeper")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, SETTINGS) as server:
        yield server


@pytest.mark.system
async def test_users_notice_nothing_of_an_experiment(served: ServerProcess) -> None:
    async with ClientSession() as http:
        alice, bob = [await Client.register(http, served.url, name) for name in ("alice", "bob")]
        group = await alice.create_group("friends")
        await bob.join(group)
        await alice.send(group, b"stays")
        async with listening(bob) as heard:
            status, told, said = await asyncio.to_thread(command, served.config, served.folder)
            assert (findings(told), status) == ([], 0), said
            assert [each["name"] for each in told["parts"]] == ["key file", "experiment"]
            assert told["parts"][1]["looked_at"]["messages that stay"] == ROUNDS
            await alice.send(group, b"more")
            assert (await heard.next())[0] == "new_message"
            assert heard.waiting() == []
        assert [each.body for each in await bob.fetch(group)] == [b"stays", b"more"]
        listed = await asyncio.to_thread(conclave, "user", "list", "--config", served.config, cwd=served.folder)
        assert "experiment" not in listed.stdout


@pytest.mark.system
def test_an_experiment_that_was_killed_anywhere_is_removed_by_the_next_or_by_a_run(served: ServerProcess) -> None:
    for point in EXPERIMENT_POINTS:
        killed = subprocess.run(
            [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--config", served.config],
            cwd=served.folder,
            env=os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill"},
            capture_output=True,
        )
        assert killed.returncode == -9, point
    listed = conclave("user", "list", "--config", served.config, cwd=served.folder)
    assert "experiment" not in listed.stdout, "the last one had removed its own and its predecessors'"
    killed = subprocess.run(
        [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--config", served.config],
        cwd=served.folder,
        env=os.environ | {"CONCLAVE_FAILPOINT": "experiment.sent=kill"},
    )
    with closing(sqlite.connect(served.folder / "conclave.db", readonly=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT username FROM users")]
    assert len(names) == 2
    for name in names:
        assert conclave("user", "delete", name, "--yes", "--config", served.config, cwd=served.folder).returncode == 0
    assert conclave("cleanup", "run", "--config", served.config, cwd=served.folder).returncode == 0
    status, told, said = command(served.config, served.folder, "--read-only")
    assert (findings(told), status) == ([], 0), said
    with closing(sqlite.connect(served.folder / "conclave.db", readonly=True)) as connection:
        for table in ("users", "groups", "messages", "tombstones", "user_tombstones"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0
