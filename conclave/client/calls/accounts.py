"""Accounts, sessions, other users."""

import unicodedata
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from conclave.client.calls.caller import ApiCalls
from conclave.client.errors import AnswerError, InputError, SessionOverError, WrongPasswordError
from conclave.client.names import check_name
from conclave.client.session import LoginSession
from conclave.client.transport import Call, path
from conclave.wire.formats import Format
from conclave.wire.results import LoggedIn, Registered, SessionInfo, SessionList, UserInfo
from conclave.wire.schemas import accounts as wire

T = TypeVar("T")


class AccountCalls(ApiCalls):
    """Calls for accounts, sessions and users."""

    async def register(self, username: str, password: str, alias: str = "", registration_token: str = "") -> UUID:
        """Create an account and return its id. Raises ClientError."""
        body = wire.Register(username, _normalized(password), alias, registration_token)
        return (await self.transport.request(Call("POST", "/register", wire.RegisterRequest, body), Registered)).user_id

    async def login(self, username: str, password: str) -> LoginSession:
        """Create a session, and use it for all further calls. Raises WrongPasswordError.

        As in all methods, the password is first sent in NFC. If that is wrong, it is sent as typed. Raises AnswerError
        if the server's answer has an invalid username.
        """
        transport = self.transport

        async def ask(password: str) -> LoggedIn:
            call = Call("POST", "/login", wire.LoginRequest, wire.Login(username, password))
            try:
                return await transport.request(call, LoggedIn)
            except SessionOverError as error:  # the protocol uses one code for both errors
                raise WrongPasswordError(error.status, error.code, str(error)) from error

        found = await _try_password(password, ask)
        try:
            check_name("username", found.username)
        except InputError as error:
            raise AnswerError("the server's answer has an invalid username") from error
        self.resume(LoginSession(str(transport.url), found.user_id, found.username, found.token, transport.written_in))
        return self.session

    def resume(self, session: LoginSession) -> None:
        """Use an existing session. Raises ValueError if it is for another server."""
        if session.url != str(self.transport.url):
            raise ValueError(f"this session is for {session.url}")
        self._session = session
        self.transport.token = session.token

    @property
    def session(self) -> LoginSession:
        """The current session. Raises RuntimeError before login."""
        found: LoginSession | None = getattr(self, "_session", None)
        if found is None:
            raise RuntimeError("log in or resume a session first")
        return found

    async def logout(self) -> None:
        """End the session. An expired session is no error."""
        if not self.transport.token:
            return
        with suppress(SessionOverError):  # an earlier attempt may have succeeded, but its answer was lost
            await self.transport.send(Call("POST", "/logout", repeatable=True))
        self.transport.token = ""

    async def me(self) -> UserInfo:
        """Return the user's own account."""
        return await self.transport.request(Call("GET", "/me", repeatable=True), UserInfo)

    async def set_alias(self, alias: str) -> None:
        """Change the user's own alias; "" clears it."""
        body = wire.UpdateProfile(alias)
        await self.transport.send(Call("PATCH", "/me", wire.UpdateProfileRequest, body, repeatable=True))

    async def change_password(self, current: str, new: str) -> None:
        """Change the password. This ends all sessions: log in again."""

        async def ask(current: str) -> None:
            body = wire.ChangePassword(current, _normalized(new))
            await self.transport.send(Call("POST", "/change-password", wire.ChangePasswordRequest, body))

        await _try_password(current, ask)

    async def reset_account(self) -> None:
        """Delete all key packages of the user."""
        await self.transport.send(Call("POST", "/reset-account", repeatable=True))

    async def delete_account(self, password: str) -> None:
        """Delete the account and its messages."""

        async def ask(password: str) -> None:
            body = wire.DeleteAccount(password)
            await self.transport.send(Call("POST", "/delete-account", wire.DeleteAccountRequest, body))

        await _try_password(password, ask)

    async def user(self, username: str) -> UserInfo:
        """Find a user by name. Raises ClientError; InputError for an invalid name."""
        call = Call("GET", path("users", check_name("username", username)), repeatable=True)
        return await self.transport.request(call, UserInfo)

    async def user_by_id(self, user_id: UUID) -> UserInfo:
        """Find a user by id."""
        return await self.transport.request(Call("GET", path("users", "by-id", user_id), repeatable=True), UserInfo)

    async def sessions(self) -> tuple[SessionInfo, ...]:
        """List the user's sessions, newest first."""
        call = Call("GET", "/sessions", repeatable=True)
        return await self._read_list(
            *(call, SessionList, lambda answer: answer.sessions, lambda each: each.id), written_in=Format.JSON
        )

    async def end_session(self, session_id: UUID) -> None:
        """End a session, for example of a lost device."""
        await self.transport.send(Call("DELETE", path("sessions", session_id)))


def _normalized(password: str) -> str:
    """Return a password in NFC: keyboards send é as one or two characters (RFC 8265, section 4.2)."""
    return unicodedata.normalize("NFC", password)


async def _try_password(password: str, ask: Callable[[str], Awaitable[T]]) -> T:
    """Call ``ask`` with the password in NFC, then as typed: another client may have set it unnormalized."""
    try:
        return await ask(_normalized(password))
    except WrongPasswordError:
        if _normalized(password) == password:
            raise
    return await ask(password)
