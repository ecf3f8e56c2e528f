"""The canary: erased, searched for, found where it is still to be found, and gone without a trace."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from aiohttp import ClientSession

from conclave.actions import accounts
from conclave.actions.command_runner import Outside
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.failpoints import CANARY_POINTS
from conclave.proof import canary
from conclave.proof.canary import Canary, CanaryError
from conclave.proof.findings import ProofPart
from conclave.proof.search import Hit, Search
from conclave.retention.resolve import Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import state
from conclave.system import locks
from spark import run
from spark.environment import RunEnvironment
from tests.proof.stores import command, examined, findings, kinds
from tests.support import stores
from tests.support.client import Client
from tests.support.listening import listening
from tests.support.server import ServerProcess, conclave

SETTINGS = '[cleanup]\nengine = "sql"\ndisk_reserve = "1m"\n'
NOW = 1_700_000_000
DAY = 86_400


class Cage:
    """A store that has been served, and runs on it in this process."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        cleanup = CleanupConfig(engine="sql", disk_reserve=0)
        self.config = Config(database_path=str(folder / "hot.db"), cleanup=cleanup, **settings)
        self.clock = FakeClock(NOW)
        self.runs = 0
        stores.prepare(self.config.database)
        self.config.data.mkdir()
        with closing(sqlite.connect(self.config.database)) as connection, sqlite.write_transaction(connection):
            state.begin_serving(connection, self.config.policy, self.clock.read())

    def clean_up(self) -> str:
        self.runs += 1
        with closing(RunEnvironment(self.config, self.clock)) as engine:
            return run.clean_up(engine).error

    def canary(self, clean_up: Callable[[], str] | None = None) -> Canary:
        return Canary(self.config, Outside(self.config, self.clock), clean_up or self.clean_up)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return [tuple(each) for each in connection.execute(sql)]

    def expect_empty(self) -> None:
        for table in ("users", "groups", "members", "messages", "tombstones", "user_tombstones"):
            assert self.query(f"SELECT count(*) FROM {table}") == [(0,)], table


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary files of this machine are many, and others' tests write there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def cage(tmp_path: Path) -> Cage:
    return Cage(tmp_path)


def found_in(part: ProofPart) -> set[tuple[str, str]]:
    return {(str(each.kind), Path(each.path).name) for each in part.findings}


def test_what_a_canary_sent_is_erased_and_what_stays_is_found(cage: Cage) -> None:
    part = cage.canary().run()
    assert part.findings == []
    assert part.looked_at["erased messages"] == 2 * len(canary.SIZES) * canary.OF_EACH
    assert part.looked_at["pieces in the database of messages that stay"] > 0
    assert part.notes == ["the archive is not covered: no message moves there"]
    cage.expect_empty()
    assert kinds(examined(cage.config)) == {}


def test_a_copy_that_was_made_while_the_messages_were_there_is_found(cage: Cage, temporary: Path) -> None:
    """In the data directory, beside the database, and among temporary files that are new; older ones are others'."""
    (temporary / "older").write_bytes(b"")
    os.utime(temporary / "older", (1, 1))

    def clean_up() -> str:
        if not cage.runs:
            for copied in (cage.config.data / "copy", temporary / "new", temporary / "older"):
                copied.write_bytes(cage.config.database.read_bytes() + wal.read_bytes())
            os.utime(temporary / "older", (1, 1))
            shutil.copy(cage.config.database, cage.config.database.with_name("hot.db.copy"))
        return cage.clean_up()

    wal = cage.config.database.with_name("hot.db-wal")
    with closing(sqlite.connect(cage.config.database)):  # keeps the log
        part = cage.canary(clean_up).run()
    assert {name for kind, name in found_in(part) if kind == "mark"} >= {"copy", "new"}
    assert "older" not in {name for _, name in found_in(part)}
    assert all(each.offset is not None for each in part.findings)


def test_folders_that_go_while_they_are_searched_are_nothing_to_stop_for(
    cage: Cage, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have their temporary folders beside those that are searched, and runs theirs in the data directory."""
    is_file = canary._is_file
    places = (temporary, cage.config.data / "work")

    def clean_up() -> str:
        error = cage.clean_up()  # it empties the work folder
        for folder in (place / name for place in places for name in ("one", "other")):
            (folder / "in").mkdir(parents=True, exist_ok=True)
            (folder / "in" / "file").write_bytes(b"something")
        return error

    def looked_at(path: Path) -> bool:
        for place in places:
            if path.name == "file" and place in path.parents:
                for other in {"one", "other"} - {path.relative_to(place).parts[0]}:
                    shutil.rmtree(place / other, ignore_errors=True)
        return is_file(path)

    monkeypatch.setattr(canary, "_is_file", looked_at)
    assert cage.canary(clean_up).run().findings == []


def test_a_file_that_a_run_writes_in_the_place_of_another_meanwhile_is_searched(
    cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flying = cage.canary()
    former, new = (cage.config.archive_path / name for name in ("former", "new"))
    former.parent.mkdir()
    former.write_bytes(flying._marks.control * 10)
    search = Search.in_bytes

    def meanwhile(itself: Search, path: Path) -> Iterator[Hit]:
        if former.exists():
            former.rename(new)
        yield from search(itself, path)

    monkeypatch.setattr(Search, "in_bytes", meanwhile)
    assert {hit.path for hit in flying._hits()} == {new}


def test_a_run_that_erases_nothing_is_no_proof(cage: Cage) -> None:
    part = cage.canary(lambda: "").run()
    assert {kind for kind, _ in found_in(part)} == {"blind", "mark"}
    told = next(each.told for each in part.findings if each.kind == "blind")
    assert told.startswith(f"the run has not erased {2 * len(canary.SIZES) * canary.OF_EACH} ")
    cage.clean_up()
    cage.expect_empty()


def test_a_search_that_does_not_find_what_is_there_is_no_proof(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "in_bytes", lambda *_: iter(()))
    assert found_in(cage.canary().run()) == {("blind", "hot.db")}


def test_a_run_that_fails_ends_the_canary_and_leaves_nothing_but_its_tombstones(cage: Cage) -> None:
    with pytest.raises(CanaryError, match="the run failed: full"):
        cage.canary(lambda: "full").run()
    assert cage.query("SELECT count(*) FROM users") == cage.query("SELECT count(*) FROM groups") == [(0,)]
    cage.clean_up()
    cage.expect_empty()


def test_no_second_canary_flies_at_the_same_time(cage: Cage) -> None:
    with locks.hold_inode(cage.config.database, canary._LOCK), pytest.raises(CanaryError, match="another canary"):
        cage.canary().run()


def test_accounts_that_only_look_like_a_canary_s_are_left_alone(cage: Cage) -> None:
    outside = Outside(cage.config, cage.clock)
    outside.write(accounts.register, outside.context(), "erasure canary mine", "$argon2id$", "")
    cage.canary().run()
    assert cage.query("SELECT username FROM users") == [("erasure canary mine",)]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "no message moves there"),
        ({"archive": ArchiveConfig(after=60, erase_delay=5)}, "erase_delay"),
        ({"archive": ArchiveConfig(after=60), "message_retention": 60}, "lives for long enough"),
        ({"archive": ArchiveConfig(after=60), "message_retention": 0}, "lives for long enough"),
    ],
)
def test_why_the_archive_is_not_covered_is_told(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    """Delete-after-fetch for all does not take what stays: nobody has fetched it."""
    cage = Cage(tmp_path, **settings)
    without = replace(cage.config, archive=ArchiveConfig())

    def clean_up() -> str:
        with closing(RunEnvironment(without, cage.clock)) as engine:
            return run.clean_up(engine).error

    part = cage.canary(clean_up).run()
    assert [why in note for note in part.notes] == [True]
    assert part.findings == []
    cage.expect_empty()


def test_a_least_lifetime_keeps_nothing_but_what_had_to_stay(tmp_path: Path) -> None:
    """What is erased is stored as of a time at which it may be."""
    default = Lifetimes(min_lifetime=DAY)
    cage = Cage(tmp_path, retention=RetentionConfig(default_policy=default))
    part = cage.canary().run()
    assert part.findings == []
    assert part.notes[1:] == ["what had to stay is deleted, and erased once its min_lifetime is over"]
    assert cage.query("SELECT count(*) FROM users") == cage.query("SELECT count(*) FROM groups") == [(0,)]
    assert cage.query("SELECT count(*) FROM messages") == [(len(canary.SIZES) * canary.OF_EACH,)]
    cage.clock.advance(DAY + 1)
    assert cage.clean_up() == ""
    cage.expect_empty()


def test_where_nothing_is_erased_no_canary_flies(tmp_path: Path) -> None:
    cage = Cage(tmp_path, retention=RetentionConfig(enabled=False))
    with pytest.raises(CanaryError, match="nothing is erased"):
        cage.canary().run()
    assert cage.runs == 0
    cage.expect_empty()


def test_nobody_can_take_the_name_of_a_canary(cage: Cage) -> None:
    from marshmallow import ValidationError

    from conclave.wire.fields import NAME_RULE

    with pytest.raises(ValidationError):
        NAME_RULE(canary._NAME + "keeper")


def marked(mark: bytes, size: int, begin: int) -> bytes:
    return canary._body(mark, size + begin)[begin:]


@pytest.mark.parametrize("begin", range(16))
def test_any_24_bytes_of_a_canary_s_body_have_a_mark(tmp_path: Path, begin: int) -> None:
    mark = os.urandom(canary.MARK_BYTES)
    (tmp_path / "file").write_bytes(bytes(1000) + marked(mark, 24, begin))
    found = [hit.offset for hit in Search([mark], 9).in_bytes(tmp_path / "file")]
    assert found
    assert 1000 <= found[0] <= 1016


def test_marks_are_found_across_the_pieces_that_are_read_and_in_what_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conclave.proof.search.CHUNK_BYTES", 64)
    path = tmp_path / "file"
    for at in range(40, 80):
        path.write_bytes(bytes(at) + b"12345678" + bytes(90) + b"12345678")
        assert [hit.offset for hit in Search([b"12345678"], 9).in_bytes(path)] == [at, at + 98]
        assert [hit.offset for hit in Search([b"12345678"], 1).in_bytes(path)] == [at]
    content = "".join(random.Random(3).choices("12345678", k=20_000)).encode().replace(b"12345678", b"") + b"12345678"
    packed: bytes = pyarrow.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(b"before" + packed)
    assert list(Search([b"12345678"], 9).in_bytes(path)) == []
    assert [hit.offset for hit in Search([b"12345678"], 9).in_packed(path)] == [6]
    for empty in (path, tmp_path / "missing"):
        path.write_bytes(b"")
        assert list(Search([b"12345678"], 9).in_packed(empty)) == list(Search([b"12345678"], 9).in_bytes(empty)) == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, SETTINGS) as server:
        yield server


@pytest.mark.system
async def test_users_notice_nothing_of_a_canary(served: ServerProcess) -> None:
    async with ClientSession() as http:
        alice, bob = [await Client.register(http, served.url, name) for name in ("alice", "bob")]
        group = await alice.create_group("friends")
        await bob.join(group)
        await alice.send(group, b"stays")
        async with listening(bob) as heard:
            status, told, said = await asyncio.to_thread(command, served.config, served.folder, "--canary")
            assert (findings(told), status) == ([], 0), said
            assert told["parts"][-1]["name"] == "canary"
            assert told["parts"][-1]["looked_at"]["pieces in the database of messages that stay"] > 0
            await alice.send(group, b"more")
            assert (await heard.next())[0] == "new_message"
            assert heard.waiting() == []
        assert [each.body for each in await bob.fetch(group)] == [b"stays", b"more"]
        listed = await asyncio.to_thread(conclave, "user", "list", "--config", served.config, cwd=served.folder)
        assert "canary" not in listed.stdout


@pytest.mark.system
def test_a_canary_that_was_killed_anywhere_is_removed_by_the_next_or_by_a_run(served: ServerProcess) -> None:
    for point in CANARY_POINTS:
        killed = subprocess.run(
            [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--canary", "--config", served.config],
            cwd=served.folder,
            env=os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill"},
            capture_output=True,
        )
        assert killed.returncode == -9, point
    listed = conclave("user", "list", "--config", served.config, cwd=served.folder)
    assert "canary" not in listed.stdout, "the last one had removed its own and its predecessors'"
    killed = subprocess.run(
        [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--canary", "--config", served.config],
        cwd=served.folder,
        env=os.environ | {"CONCLAVE_FAILPOINT": "canary.sent=kill"},
    )
    with closing(sqlite.connect(served.folder / "conclave.db", readonly=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT username FROM users")]
    assert len(names) == 2
    for name in names:
        assert conclave("user", "delete", name, "--yes", "--config", served.config, cwd=served.folder).returncode == 0
    assert conclave("cleanup", "run", "--config", served.config, cwd=served.folder).returncode == 0
    status, told, said = command(served.config, served.folder)
    assert (findings(told), status) == ([], 0), said
    with closing(sqlite.connect(served.folder / "conclave.db", readonly=True)) as connection:
        for table in ("users", "groups", "messages", "tombstones", "user_tombstones"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0
