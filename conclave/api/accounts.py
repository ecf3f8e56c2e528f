"""Registration, login and logout, and changes of the caller's account."""

import hmac

from aiohttp import web

from conclave import app_keys
from conclave.actions import accounts, registration_tokens
from conclave.api.action_runner import read_action, run_action
from conclave.auth import tokens
from conclave.errors import ForbiddenError, PasswordWrongError
from conclave.wire.exchange import FORMAT, read_body, reply, reply_empty
from conclave.wire.schemas.accounts import ChangePassword, DeleteAccount, Login, Register, UpdateProfile


async def register(request: web.Request) -> web.Response:
    """POST /register: Open an account."""
    app = request.app
    body = await read_body(request, Register)
    token_hash = await _permit_registration(request, body.registration_token)
    await read_action(request, accounts.require_free, body.username)
    password_hash = await app[app_keys.THROTTLE].hash_for_account(request, body.password)
    account = body.username, password_hash, body.alias, token_hash
    user_id = await run_action(request, accounts.register, app[app_keys.CONTEXT], *account)
    return reply(request, {"user_id": user_id})


async def _permit_registration(request: web.Request, token: str) -> bytes | None:
    """Return the hash of ``token`` if it is a stored registration token; None if no token is needed.

    A valid registration token, from the settings or the store, permits registration even while it is closed. Clients do
    not learn why a token is invalid. Raises ForbiddenError or TooManyRequestsError.
    """
    app = request.app
    config = app[app_keys.CONFIG]
    if config.registration_enabled and config.registration_token is None:
        return None
    if not token:
        raise ForbiddenError("registration needs a registration token")
    # Hashes are compared, so that the time does not reveal the token's length.
    token_hash = tokens.token_hash(token)
    configured_hash = tokens.token_hash(config.registration_token or "")
    with app[app_keys.THROTTLE].registration_attempt(request):
        if hmac.compare_digest(configured_hash, token_hash):
            return None
        if await read_action(request, registration_tokens.is_alive, token_hash, app[app_keys.CONTEXT].now()):
            return token_hash
        raise ForbiddenError("wrong registration token")


async def login(request: web.Request) -> web.Response:
    """POST /login: Start a session."""
    app = request.app
    body = await read_body(request, Login)
    credentials = await read_action(request, accounts.credentials, body.username)
    user_id, password_hash = credentials or (b"", "")
    await app[app_keys.THROTTLE].require_match(request, body.username, password_hash, body.password)
    token = tokens.new_token(request[FORMAT])
    await run_action(request, accounts.login, app[app_keys.CONTEXT], user_id, password_hash, tokens.token_hash(token))
    return reply(request, {"token": token, "user_id": user_id, "username": body.username})


async def logout(request: web.Request) -> web.Response:
    """POST /logout: End this session."""
    caller = request[tokens.CALLER]
    await run_action(request, accounts.logout, caller.user_id, caller.session_id)
    return reply_empty(request)


async def update(request: web.Request) -> web.Response:
    """PATCH /me: Change the caller's alias."""
    body = await read_body(request, UpdateProfile)
    await run_action(request, accounts.update, request[tokens.CALLER].user_id, body.alias)
    return reply_empty(request)


async def change_password(request: web.Request) -> web.Response:
    """POST /change-password: Change the caller's password and end all of the caller's sessions."""
    body = await read_body(request, ChangePassword)
    former_hash = await _require_password(request, body.current_password)
    new_hash = await request.app[app_keys.THROTTLE].hash_new_password(request, body.new_password)
    await run_action(request, accounts.change_password, request[tokens.CALLER].user_id, former_hash, new_hash)
    return reply_empty(request)


async def reset(request: web.Request) -> web.Response:
    """POST /reset-account: Delete the caller's key packages."""
    await run_action(request, accounts.reset, request[tokens.CALLER].user_id)
    return reply_empty(request)


async def delete(request: web.Request) -> web.Response:
    """POST /delete-account: Delete the caller's account."""
    body = await read_body(request, DeleteAccount)
    password_hash = await _require_password(request, body.password)
    await run_action(
        request, accounts.delete, request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id, password_hash
    )
    return reply_empty(request)


async def _require_password(request: web.Request, password: str) -> str:
    """Return the stored hash of the caller's password. Raises PasswordWrongError or TooManyRequestsError."""
    username, password_hash = await read_action(request, accounts.own_credentials, request[tokens.CALLER].user_id)
    await request.app[app_keys.THROTTLE].require_match(request, username, password_hash, password, PasswordWrongError)
    return password_hash
