"""Registering, logging in and out, and what users do with their own account."""

import hmac
import sqlite3
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from conclave import keys
from conclave.auth import tokens
from conclave.config.settings import Config
from conclave.errors import ForbiddenError, PasswordWrongError
from conclave.store import accounts, key_packages, members, sessions, users
from conclave.store.news import announce, members_of
from conclave.wire.exchange import FORMAT, read_body, reply, reply_empty


async def register(request: web.Request) -> web.Response:
    """POST /register: Open an account."""
    app = request.app
    body = await read_body(request)
    _require_open(app[keys.CONFIG], body["registration_token"])
    await app[keys.STORE].read(users.require_free, body["username"])
    password_hash = await app[keys.THROTTLE].hash_for_account(request, body["password"])
    user_id = await app[keys.STORE].write(
        users.add, body["username"], password_hash, body["alias"], app[keys.CLOCK].now()
    )
    return reply(request, {"user_id": user_id})


def _require_open(config: Config, token: str) -> None:
    """Raise ForbiddenError unless who brings ``token`` may register: one that is asked for opens what is closed."""
    if config.registration_token is None:
        if not config.registration_enabled:
            raise ForbiddenError("registration is closed")
    elif not hmac.compare_digest(config.registration_token.encode(), token.encode()):
        raise ForbiddenError("wrong registration token")


async def login(request: web.Request) -> web.Response:
    """POST /login: Begin a session."""
    app = request.app
    body = await read_body(request)
    known = await app[keys.STORE].read(users.credentials, body["username"])
    user_id, password_hash = known or (b"", "")
    await app[keys.THROTTLE].require_match(request, body["username"], password_hash, body["password"])
    token = tokens.new_token(request[FORMAT])
    now, ttl = app[keys.CLOCK].now(), app[keys.CONFIG].token_ttl_seconds
    await app[keys.STORE].write(sessions.add, user_id, password_hash, tokens.token_hash(token), now, ttl)
    return reply(request, {"token": token, "user_id": user_id, "username": body["username"]})


async def logout(request: web.Request) -> web.Response:
    """POST /logout: End this session."""
    caller = request[tokens.CALLER]
    await request.app[keys.STORE].write(sessions.remove, caller.user_id, caller.session_id)
    return reply_empty(request)


async def update(request: web.Request) -> web.Response:
    """PATCH /me: Change the own alias."""
    await request.app[keys.STORE].write(_update, request[tokens.CALLER].user_id, await read_body(request))
    return reply_empty(request)


def _update(connection: sqlite3.Connection, user_id: bytes, changes: Mapping[str, Any]) -> None:
    users.require(connection, user_id)
    if "alias" not in changes:
        return
    users.set_alias(connection, user_id, changes["alias"])
    for membership in members.of_user(connection, user_id):
        group_id, everybody = membership.group.group_id, members_of(connection, membership.group.group_key)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")


async def change_password(request: web.Request) -> web.Response:
    """POST /change-password: Change the password, which ends every session of the caller."""
    app, user_id = request.app, request[tokens.CALLER].user_id
    body = await read_body(request)
    former = await _require_password(request, body["current_password"])
    new = await app[keys.THROTTLE].hash_anew(request, body["new_password"])
    await app[keys.STORE].write(accounts.change_password, user_id, former, new)
    return reply_empty(request)


async def reset(request: web.Request) -> web.Response:
    """POST /reset-account: Delete the caller's key packages."""
    await request.app[keys.STORE].write(key_packages.remove_all, request[tokens.CALLER].user_id)
    return reply_empty(request)


async def delete(request: web.Request) -> web.Response:
    """POST /delete-account: Delete the caller's account."""
    app = request.app
    body = await read_body(request)
    stored = await _require_password(request, body["password"])
    await app[keys.STORE].write(_delete, request[tokens.CALLER].user_id, stored, app[keys.CLOCK].now())
    return reply_empty(request)


def _delete(connection: sqlite3.Connection, user_id: bytes, password_hash: str, now: int) -> None:
    if users.own_credentials(connection, user_id)[1] != password_hash:
        raise PasswordWrongError  # it was changed meanwhile
    accounts.delete(connection, user_id, now)


async def _require_password(request: web.Request, password: str) -> str:
    """Return the stored hash of the caller's password. Raises PasswordWrongError or TooManyRequestsError."""
    app = request.app
    username, stored = await app[keys.STORE].read(users.own_credentials, request[tokens.CALLER].user_id)
    await app[keys.THROTTLE].require_match(request, username, stored, password, PasswordWrongError)
    return stored
