"""Letting something happen in the middle of a request."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conclave import app_keys
from tests.conftest import Running


def right_after(
    running: Running, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any], happens: Callable[[], Awaitable[Any]]
) -> None:
    """Have ``happens`` take place once: after the next request has ``read`` from the store, before it goes on."""
    store = running.app[app_keys.STORE]
    original, once = store.read, [happens]

    async def racing(fn: Callable[..., Any], *values: Any, **named: Any) -> Any:
        found = await original(fn, *values, **named)
        if fn is read and once:
            await once.pop()()
        return found

    monkeypatch.setattr(store, "read", racing)


def right_after_session(
    running: Running, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[Any]]
) -> None:
    """Have ``happens`` take place once: after the next request was authenticated, before it goes on."""
    remembered = running.app[app_keys.SESSIONS]
    original, once = remembered.load, [happens]

    async def racing(token_hash: bytes) -> Any:
        found = await original(token_hash)
        if once:
            await once.pop()()
        return found

    monkeypatch.setattr(remembered, "get", lambda _: None)  # as for a session that was not used lately
    monkeypatch.setattr(remembered, "load", racing)
