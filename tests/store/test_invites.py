"""Invites that wait: what it costs to withdraw many."""

from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from conclave.actions import accounts
from conclave.actions.authorisation import require_group
from conclave.config.settings import Config
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.store.resources import groups, members, users
from tests.support import stores

STEPS_AT_ONCE = 100


@pytest.mark.parametrize("are_both_admins", [True, False])
def test_the_end_of_an_account_looks_at_each_of_its_invites_once(config: Config, *, are_both_admins: bool) -> None:
    few, many = (_steps(config.database.with_name(f"{count}.db"), count, are_both_admins) for count in (50, 400))
    assert many < 2 * 8 * few, "eight times as many take about eight times as long"


def _steps(path: Path, count: int, are_both_admins: bool) -> int:
    """Return how many steps SQLite takes to delete the account of an admin of ``count`` groups with an invite each."""
    stores.prepare(path)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += STEPS_AT_ONCE

    with closing(sqlite.connect(path)) as connection:
        with sqlite.write_transaction(connection):
            alice, bob, carol = (users.add(connection, name, "", "", 1) for name in ("alice", "bob", "carol"))
            for number in range(count):
                key = require_group(
                    connection, groups.add(connection, alice, f"group{number}", "", 1, Config().policy)
                ).group_key
                members.add(connection, key, bob, 1)
                if are_both_admins:
                    connection.execute("UPDATE members SET role = 'admin'")
                connection.execute(
                    "INSERT INTO invites (invite_id, group_key, invitee_id, inviter_id, created_at, commit_body,"
                    " welcome_body, group_info_body) VALUES (?, ?, ?, ?, 1, ?, ?, ?)",
                    (uuid4().bytes, key, carol, alice, *(bodies.put(connection, b"x") for _ in range(3))),
                )
        connection.set_progress_handler(step, STEPS_AT_ONCE)
        with sqlite.write_transaction(connection):
            accounts.end(connection, alice, 2)
        connection.set_progress_handler(None, 0)
        assert connection.execute("SELECT count(*) FROM invites").fetchone()[0] == 0
    return steps
