"""Registering, logging in and out."""

import hmac

from aiohttp import web

from conclave import auth, keys
from conclave.errors import ForbiddenError
from conclave.store import sessions, users
from conclave.wire.exchange import FORMAT, read_body, reply, reply_empty


async def register(request: web.Request) -> web.Response:
    """POST /register: Open an account."""
    app = request.app
    body = await read_body(request)
    config = app[keys.CONFIG]
    if not config.registration_enabled:
        raise ForbiddenError("registration is closed")
    if config.registration_token is not None and not hmac.compare_digest(
        config.registration_token.encode(), body["registration_token"].encode()
    ):
        raise ForbiddenError("wrong registration token")
    await app[keys.STORE].read(users.require_free, body["username"])
    password_hash = await app[keys.PASSWORDS].hash(body["password"])
    user_id = await app[keys.STORE].write(
        users.add, body["username"], password_hash, body["alias"], app[keys.CLOCK].now()
    )
    return reply(request, {"user_id": user_id})


async def login(request: web.Request) -> web.Response:
    """POST /login: Begin a session."""
    app = request.app
    body = await read_body(request)
    known = await app[keys.STORE].read(users.credentials, body["username"])
    user_id, password_hash = known or (b"", "")
    await app[keys.PASSWORDS].require_match(password_hash, body["password"])
    token = auth.new_token(request[FORMAT])
    now, ttl = app[keys.CLOCK].now(), app[keys.CONFIG].token_ttl_seconds
    await app[keys.STORE].write(sessions.add, user_id, password_hash, auth.token_hash(token), now, ttl)
    return reply(request, {"token": token, "user_id": user_id, "username": body["username"]})


async def logout(request: web.Request) -> web.Response:
    """POST /logout: End this session."""
    caller = request[auth.CALLER]
    await request.app[keys.STORE].write(sessions.remove, caller.session_id)
    request.app[keys.EVENTS].end_session(caller.user_id, caller.session_id)
    return reply_empty(request)
