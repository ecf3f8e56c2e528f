"""An action is a function over a connection, which whoever has one may run."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conclave import actions
from conclave.actions import accounts, commits, groups, members, retention, users
from conclave.actions.commits import Commit
from conclave.actions.context import Context
from conclave.actions.groups import GroupChanges
from conclave.actions.messages import JointSend, Send
from conclave.clock import FakeClock
from conclave.errors import NotMemberError
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import state
from tests.support import stores

POLICY = PolicySettings(-1, 2_592_000, 604_800)

NO_RESOURCES = "command_runner", "context", "lookup", "quotas"
"""Modules that actions use, without actions of their own."""

MODULES = [each.name for each in pkgutil.iter_modules(actions.__path__) if each.name not in NO_RESOURCES]


def functions(module: str) -> dict[str, Callable[..., Any]]:
    """Those that a module offers: its own, and those of the store that it names."""
    found = importlib.import_module(f"{actions.__name__}.{module}")
    own = {name for name, value in vars(found).items() if getattr(value, "__module__", "") == found.__name__}
    names = {name for name in own | set(getattr(found, "__all__", ())) if not name.startswith("_")}
    return {name: value for name in sorted(names) if inspect.isfunction(value := getattr(found, name))}


@pytest.mark.parametrize("module", sorted({*MODULES} - {"messages"}))  # joint writes, and reads of both tiers
def test_an_action_takes_the_connection_and_then_the_context(module: str) -> None:
    found = functions(module)
    assert found
    for name, function in found.items():
        assert not inspect.iscoroutinefunction(function), name
        first, *others = inspect.signature(function).parameters
        assert first == "connection", name
        assert "context" not in others[1:], name


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_offers_functions_of_the_store_names_all_that_it_offers(module: str) -> None:
    named = getattr(importlib.import_module(f"{actions.__name__}.{module}"), "__all__", None)
    assert named is None or functions(module).keys() <= set(named)


def test_actions_need_no_server(tmp_path: Path) -> None:
    stores.prepare(tmp_path / "hot.db")
    clock = FakeClock()
    context = Context(POLICY, clock)
    with closing(sqlite.connect(tmp_path / "hot.db")) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, POLICY, clock.read())
        alice = accounts.register(connection, context, "alice", "hash", "")
        bob = accounts.register(connection, context, "bob", "hash", "")
        group = groups.create(connection, context, alice, "friends", "")
        groups.update(connection, context, group, alice, GroupChanges(visibility="public", message_expiry_seconds=60))
        commits.upload(connection, context, group, alice, Commit(b"commit", b"group info"))
        assert members.join(connection, context, group, bob) == b"group info"
        sending = JointSend(context)
        assert sending(connection, [Send(group, bob, b"hello"), Send(group, alice, b"and you")]) == [2, 3]
        assert vars(retention.policy(connection, context, group, bob, None)) == {
            "server_retention_seconds": -1,
            "group_expiry_seconds": 60,
            "effective_expiry_seconds": 60,
            "min_lifetime_seconds": 0,
            "policy_source": "group",
            "legal_hold": False,
            "held_by": (),
            "hidden_before": 0,
            "taken_back": [],
            "more": False,
            "last_sequence_num": 3,
            "expiry_set_by": alice,
        }
        accounts.delete(connection, context, bob, "hash")
        sent, refused = sending(connection, [Send(group, alice, b"alone"), Send(group, bob, b"more")])
        assert sent == 4
        assert isinstance(refused, NotMemberError)
        assert users.by_name(connection, "alice").user_id == alice
