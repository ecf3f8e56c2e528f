"""`conclave evidence receipts` and `verify`: what was erased, and whether that was changed."""

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.store.engine import sqlite
from tests.conftest import Running
from tests.support.commands import Run, done, refused, runner

HOUR = 3600


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


@pytest.fixture
async def groups(running: Running, run: Run) -> list[str]:
    """Three groups, in each of which a run of its own has erased something: receipts 1 to 3."""
    alice = await running.user("alice")
    made = []
    for count in range(1, 4):
        made.append(await alice.create_group(f"group{count}", expiry=HOUR))
        for _ in range(count):
            await alice.send(made[-1])
        running.clock.advance(HOUR + 1)
        done(await asyncio.to_thread(run, "cleanup", "run"))
    return made


def change(config: Config, sql: str) -> None:
    """Do what somebody may do who can write to the file."""
    with closing(sqlite.connect(config.database)) as connection:
        connection.execute("PRAGMA busy_timeout = 60000")  # the server may be writing something of its own
        connection.execute(sql)


def last(told: str) -> str:
    """Return what a check has printed to be kept elsewhere."""
    return told.rpartition("the last one: ")[2].strip()


async def test_what_was_erased_is_shown_by_group_also_of_a_deleted_one(
    running: Running, run: Run, groups: list[str]
) -> None:
    shown = [json.loads(line) for line in done(run("evidence", "receipts", "--json")).splitlines()]
    assert [(each["receipt_id"], each["group_id"], each["messages"]) for each in shown] == [
        (3, groups[2], 3),
        (2, groups[1], 2),
        (1, groups[0], 1),
    ]
    assert {(each["rule"], each["job"], each["last_seq"] - each["messages"]) for each in shown} == {
        ("expired", "everything", 0)
    }
    assert [each["newest"] < each["at"] for each in shown] == [True] * 3
    assert json.loads(done(run("evidence", "receipts", "--json", "--group", "group2")))["receipt_id"] == 2
    await running.query("SELECT 1")
    change(running.config, "DELETE FROM groups WHERE group_name = 'group2'")
    assert json.loads(done(run("evidence", "receipts", "--json", "--group", groups[1])))["receipt_id"] == 2
    assert refused(run("evidence", "receipts", "--group", "group2")) == (
        "no such group: 'group2'; use the id for a deleted group"
    )
    assert len(done(run("evidence", "receipts", "--json", "--limit", "1")).splitlines()) == 1


def test_a_chain_that_nobody_has_touched_is_whole(run: Run, groups: list[str]) -> None:
    told = done(run("evidence", "verify"))
    assert told.startswith("3 receipts, each follows from the one before it\nthe last one: 3:")
    assert done(run("evidence", "verify", "--known", last(told))) == told


@pytest.mark.parametrize(
    ("sql", "broken_at"),
    [
        ("UPDATE receipts SET messages = 1 WHERE receipt_id = 2", 2),
        ("UPDATE receipts SET at = at + 1 WHERE receipt_id = 3", 3),
        ("UPDATE receipts SET rule = 'fetched' WHERE receipt_id = 1", 1),
        ("UPDATE receipts SET hash = zeroblob(32) WHERE receipt_id = 2", 2),
        ("DELETE FROM receipts WHERE receipt_id = 1", 2),
        ("DELETE FROM receipts WHERE receipt_id = 2", 3),
        (
            "INSERT INTO receipts (receipt_id, at, job, group_id, rule, messages, last_seq, newest, hash)"
            " SELECT 4, at, job, group_id, rule, 1, 1, 1, zeroblob(32) FROM receipts LIMIT 1",
            4,
        ),
    ],
)
def test_what_was_changed_by_hand_is_found(
    config: Config, run: Run, groups: list[str], sql: str, broken_at: int
) -> None:
    change(config, sql)
    assert refused(run("evidence", "verify")).startswith(
        f"receipt {broken_at} does not follow from the one before it: it was changed, or an earlier one was"
    )


def test_the_end_of_the_chain_is_missed_by_whoever_has_kept_it(config: Config, run: Run, groups: list[str]) -> None:
    known = last(done(run("evidence", "verify")))
    change(config, "DELETE FROM receipts WHERE receipt_id = 3")
    assert done(run("evidence", "verify")).startswith("2 receipts,"), "by itself the rest is whole"
    assert refused(run("evidence", "verify", "--known", known)).startswith("receipt 3 is missing, or its hash differs")
    assert run("evidence", "verify", "--known", "3:x").exit_code == 2


def test_on_a_narrow_terminal_nothing_is_cut_off(run: Run, groups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows lie one below the other there, a line for each cell; elsewhere they are a table."""
    assert "│ 3       │" in done(run("evidence", "receipts"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")  # 80 columns, no colours
    shown = done(run("evidence", "receipts"))
    rows = [dict(line.split(":", 1) for line in row.splitlines() if line) for row in shown.split("\n\n")]
    told = [(row["group"].strip(), row["messages"].strip()) for row in rows]
    assert told == [(groups[2], "3"), (groups[1], "2"), (groups[0], "1")]
    listed = done(run("cleanup", "history"))
    assert max(map(len, listed.splitlines())) <= 80
    assert "everything" in listed
    assert "1 expired" in listed
