"""A refused request leaves no circle that keeps its body in memory until Python looks for circles."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from tests.conftest import Running
from tests.support.client import encode, expect

LARGE = 700_000
"""Bytes of a body."""


def is_large(found: object) -> bool:
    return sys.getsizeof(found) >= LARGE // 2


@contextmanager
def collected(is_meant: Callable[[object], bool] = is_large) -> Iterator[list[object]]:
    """Yield a list, which then has the types of the objects meant that only a search for circles would free."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        held = [each for circle in gc.garbage for each in (circle, *gc.get_referents(circle))]
        found += [type(each) for each in held if is_meant(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_an_answered_request_is_no_circle(running: Running) -> None:
    alice = await running.user("alice")
    with collected(lambda found: isinstance(found, web.BaseRequest)) as found:
        for _ in range(5):
            await alice.get("/me")
            await alice.get("/groups")
        await running.settle()
    assert found == []


async def test_a_body_that_its_schema_refuses_is_let_go_of(running: Running) -> None:
    alice = await running.user("alice")
    with collected() as found:
        await expect(alice.call("PATCH", "/me", json={"alias": "x" * LARGE}), 400, 101)
        await running.settle()
    assert found == []


async def test_a_body_that_a_transaction_refuses_is_let_go_of(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    body = {name: encode(b"x" * (LARGE // 4)) for name in ("commit_message", "welcome_message", "group_info")}
    with collected() as found:
        invite = alice.post(f"/groups/{group}/escrow-invite", invitee_id=bob.user_id, **body)
        await expect(invite, 409, 301)
        await running.settle()
    assert found == []


@pytest.mark.parametrize("path", ["/register", "/groups"])
async def test_a_name_that_is_too_long_is_let_go_of(running: Running, path: str) -> None:
    alice = await running.user("alice")
    with collected() as found:
        name = "username" if path == "/register" else "group_name"
        await expect(alice.call("POST", path, json={name: "x" * LARGE, "password": "secret phrase"}), 400, 101)
        await running.settle()
    assert found == []
