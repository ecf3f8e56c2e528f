"""Every call of the library, in both formats, against a real server."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from aiohttp import ClientSession

from conclave.client import (
    AuthError,
    Backoff,
    Client,
    Format,
    GroupError,
    History,
    InputError,
    LoginSession,
    MlsCodec,
    NoAnswerError,
    PlaintextCodec,
    ResourceError,
    SessionFileError,
    SessionOverError,
    WrongPasswordError,
)
from conclave.client.membership import MembershipManager
from conclave.client.transport import Call, path
from conclave.config.settings import Config
from conclave.errors import ErrorCode
from conclave.wire.events import GroupUpdate, NewMessage
from conclave.wire.results import UserInfo
from tests.conftest import Running, StartServer
from tests.support.client import PACKAGE, PASSWORD, Client as PlainClient

NewUser = Callable[[str], Any]
DAY = 86_400


@pytest.fixture(params=Format, ids=lambda each: each.name.lower())
async def user(running: Running, request: pytest.FixtureRequest) -> AsyncIterator[NewUser]:
    async with AsyncExitStack() as stack:

        async def make(name: str) -> Client:
            client = await stack.enter_async_context(Client(running.url, written_in=request.param))
            assert (
                await client.register(name, PASSWORD, alias=f"{name}!") == (await client.login(name, PASSWORD)).user_id
            )
            return client

        yield make


async def test_accounts(user: NewUser, running: Running) -> None:
    alice, bob = await user("alice"), await user("bob")
    me = await alice.me()
    assert (me.username, me.alias, me.user_id) == ("alice", "alice!", alice.session.user_id)
    await alice.set_alias("Al")
    assert (await bob.user("alice")).alias == "Al"
    assert (await bob.user_by_id(me.user_id)).username == "alice"
    former = alice.session
    await alice.login("alice", PASSWORD)
    sessions = await alice.sessions()
    assert [each.current for each in sessions].count(True) == 1
    [other] = [each for each in sessions if not each.current]
    await alice.end_session(other.id)
    async with Client(running.url, written_in=former.written_in) as phone:
        phone.resume(former)
        with pytest.raises(SessionOverError):
            await phone.me()
        await phone.logout()
    with pytest.raises(AuthError) as refused:
        await alice.change_password("wrong one", "battery staple")
    assert refused.value.code == ErrorCode.AUTH_PASSWORD_WRONG
    assert isinstance(refused.value, WrongPasswordError)
    await alice.change_password(PASSWORD, "battery staple")
    await alice.login("alice", "battery staple")
    await alice.reset_account()
    await alice.logout()
    await alice.logout()
    await alice.login("alice", "battery staple")
    await alice.delete_account("battery staple")
    with pytest.raises(ResourceError):
        await bob.user("alice")


async def test_groups_and_members(user: NewUser) -> None:
    alice, bob = await user("alice"), await user("bob")
    bob_id = bob.session.user_id
    group = await alice.create_group("club", "The Club")
    await alice.commit(group, commit_message=b"commit", group_info=b"info", mls_group_id="0aff")
    dry = await alice.update_group(group, expiry=DAY, dry_run=True)
    assert (dry.messages_expiring, dry.oldest_expiring) == (0, 0)
    await alice.update_group(group, expiry=DAY, min_lifetime=60, visibility="public", alias="Club")
    [found] = await alice.groups()
    assert (found.group_id, found.alias, found.visibility) == (group, "Club", "public")
    assert (found.message_expiry_seconds, found.mls_group_id) == (DAY, "0aff")
    assert [(each.username, each.role) for each in found.members] == [("alice", "admin")]
    retention = await alice.retention(group)
    assert (retention.effective_expiry_seconds, retention.min_lifetime_seconds) == (DAY, 60)
    assert (retention.policy_source, retention.held_by) == ("group", ())
    assert isinstance((await alice.retention_configuration()).limits, dict)
    assert [(each.group_id, each.member_count) for each in await bob.public_groups("lu")] == [(group, 1)]
    assert await bob.join(group) == b"info"
    await bob.external_join(group, b"joins")
    assert await bob.group_info(group) == b"info"
    await alice.promote(group, bob_id)
    assert [each.user_id for each in await alice.admins(group)] == [alice.session.user_id, bob_id]
    await alice.demote(group, bob_id)
    await alice.remove(group, bob_id, b"removes")
    await bob.join(group)
    await bob.leave(group, b"leaves")
    await alice.ban(group, bob_id)
    [banned] = await alice.banned(group)
    assert (banned.user_id, banned.banned_by) == (bob_id, alice.session.user_id)
    with pytest.raises(GroupError) as refused:
        await bob.join(group)
    assert refused.value.code == ErrorCode.GROUP_BANNED
    await alice.unban(group, bob_id)
    await alice.delete_group(group)
    with pytest.raises(GroupError):
        await alice.retention(group)


async def test_invites_and_key_packages(user: NewUser) -> None:
    alice, bob = await user("alice"), await user("bob")
    codec = PlaintextCodec()
    bob_id = bob.session.user_id
    await bob.upload_key_packages([PACKAGE, PACKAGE + b"2"], PACKAGE + b"last", "ab:cd")
    assert await alice.take_key_package(bob_id) == PACKAGE
    membership = MembershipManager(alice, codec)
    group = await membership.create("club", public=True)
    await membership.invite(group, "bob")
    [invite] = await bob.invites()
    assert (invite.group_id, invite.inviter_username, invite.invitee_id) == (group, "alice", bob_id)
    assert [each.invite_id for each in await alice.invites_of(group)] == [invite.invite_id]
    await alice.cancel_invite(group, bob_id)
    await membership.invite(group, "bob")
    await bob.decline_invite((await bob.invites())[0].invite_id)
    await membership.invite(group, "bob")
    await bob.accept_invite((await bob.invites())[0].invite_id)
    [welcome] = await bob.welcomes()
    codec.join_by_welcome(welcome.group_id, welcome.welcome_message)
    await bob.accept_welcome(welcome.welcome_id)
    assert await bob.welcomes() == ()
    await membership.remove(group, bob_id)
    await MembershipManager(bob, codec).join(group)
    await MembershipManager(bob, codec).leave(group)
    await membership.remove(group, bob_id, ban=True)
    assert len(await alice.banned(group)) == 1


async def test_messages_and_events(user: NewUser) -> None:
    alice, bob = await user("alice"), await user("bob")
    group = await MembershipManager(alice, PlaintextCodec()).create("club", public=True)
    await bob.join(group)
    send_id = uuid4()
    async with bob.listen() as stream:
        assert await alice.send(group, b"once", send_id=send_id) == 1
        assert await alice.send(group, b"once", send_id=send_id) == 1
        assert await alice.send(group, b"timed", self_destruct_seconds=60) == 2
        assert [await anext(stream) for _ in range(2)] == [
            NewMessage(group, number, alice.session.user_id) for number in (1, 2)
        ]
        await alice.update_group(group, alias="x")
        assert await anext(stream) == GroupUpdate(group, "group_settings")
    first, second = await bob.fetch(group)
    assert (first.sequence_num, first.mls_message, first.sender_id) == (1, b"once", alice.session.user_id)
    assert (second.self_destruct_seconds, second.redacted) == (60, False)
    await bob.read(group, 2)
    assert await bob.fetch(group, 2) == ()
    assert len(await bob.fetch(group, 0, 1, include_redacted=True)) == 1
    for _ in range(2):
        await alice.take_back(group, 1)
    with pytest.raises(GroupError, match="not yours"):
        await bob.take_back(group, 2)
    with pytest.raises(ResourceError):
        await bob.take_back(group, 9)
    assert [each.sequence_num for each in await bob.fetch(group)] == [2]
    assert (await bob.retention(group)).taken_back == (1,)


async def test_what_is_wrong_is_an_error_of_its_family(user: NewUser, running: Running) -> None:
    alice = await user("alice")
    with pytest.raises(InputError) as refused:
        await alice.create_group("not a name")
    assert (refused.value.status, refused.value.code) == (400, ErrorCode.INPUT_VALIDATION)
    if alice.session.written_in is Format.JSON:
        assert list(refused.value.fields) == ["group_name"]
    with pytest.raises(ResourceError):
        await alice.register("alice", PASSWORD)
    with pytest.raises(GroupError):
        await alice.fetch(UUID(int=0))
    with pytest.raises(WrongPasswordError):
        await alice.login("alice", "not the password")
    assert PASSWORD not in repr(alice)
    assert alice.session.token not in f"{alice!r} {alice.session!r} {alice.transport!r} {refused.value!r}"


@pytest.mark.parametrize("name", ["X-Token", "authorization"])
async def test_another_header_for_the_token(config: Config, start_server: StartServer, name: str) -> None:
    async with (
        start_server(replace(config, auth_header=name)) as running,
        Client(running.url, auth_header=name) as alice,
    ):
        await alice.register("alice", PASSWORD)
        await alice.login("alice", PASSWORD)
        assert (await alice.me()).username == "alice"


def test_every_endpoint_has_a_call() -> None:
    """But for what is no business of a client: health and the docs."""
    from conclave.server.routes import ROUTES

    asked = {
        name for calls in Client.__mro__ for name, _ in getmembers(calls, isfunction) if not name.startswith("_")
    } - {"resume"}
    others = {"/healthz", "/readyz", "/api/v1/openapi.json", "/api/v1/docs"}
    assert len(asked) == len([each for each in ROUTES if each.path not in others]), sorted(asked)


@pytest.mark.parametrize("url", ["chat.example.org", "ftp://x", "http://u:p@x", "http://x?y=1", "http:///x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address must"):
        Client(url)


class TestSessionFile:
    SESSION = LoginSession("http://x", UUID(int=7), "alice", "5c" * 32, Format.PROTOBUF)

    def test_it_is_read_as_it_was_written_and_by_nobody_else(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "session.json"
        self.SESSION.save(path)
        self.SESSION.save(path)
        assert LoginSession.load(path) == self.SESSION
        assert path.stat().st_mode & 0o777 == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["session.json"]
        path.chmod(0o640)
        with pytest.raises(SessionFileError, match="chmod 600"):
            LoginSession.load(path)

    def test_there_may_be_none(self, tmp_path: Path) -> None:
        assert LoginSession.load(tmp_path / "none") is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"written_in": "json"}', "\x00"])
    def test_what_is_no_session_is_said_to_be_none(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "session"
        path.touch(0o600)
        path.write_text(text)
        with pytest.raises(SessionFileError, match="is not a session"):
            LoginSession.load(path)


BAD_NAMES = [
    "bob?x=1",
    "bob#f",
    "bob\n",
    "../me",
    "b%6fb",
    "bob/../../me",
    "bob 2",
    "bøb",
    "",
    ".",
    "..",
    "_bob",
    "b" * 65,
]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_name_that_nobody_can_have_is_refused_in_words_before_anything_is_sent(
    running: Running, name: str
) -> None:
    async with Client(running.url) as client:
        await client.register("bob", PASSWORD)
        await client.login("bob", PASSWORD)
        group = await client.create_group("club")
        url, client.transport.url = client.transport.url, client.transport.url.with_port(1)  # nobody answers there
        for ask in (
            lambda: client.user(name),
            lambda: client.create_group(name),
            lambda: client.update_group(group, group_name=name),
            lambda: MembershipManager(client, PlaintextCodec()).invite(group, name),
        ):
            with pytest.raises(InputError, match="must be 1 to 64 letters, digits or _") as refused:
                await ask()
            assert refused.value.code == ErrorCode.INPUT_VALIDATION
        client.transport.url = url
        assert (await client.user("bob")).username == "bob"


@pytest.mark.parametrize("part", ["bob?x=1", "bob#f", "bob\n", "../me", "b%6fb", "bob 2", "bøb"])
async def test_each_part_of_a_path_stays_one_part(running: Running, part: str) -> None:
    assert unquote(path("users", part)) == f"/users/{part}"
    assert path("users", part).count("/") == 2
    async with Client(running.url) as client:
        await client.register("bob", PASSWORD)
        await client.login("bob", PASSWORD)
        with pytest.raises(ResourceError):  # and no answer about Bob
            await client.transport.request(Call("GET", path("users", part)), UserInfo)


@pytest.mark.parametrize("part", ["", ".", ".."])
def test_no_part_of_a_path_leads_elsewhere(part: str) -> None:
    with pytest.raises(ValueError, match="a part of a path"):
        path("users", part)


async def test_a_password_is_the_same_however_its_letters_are_put_together(running: Running) -> None:
    composed, apart = "caf\u00e9 \u00e0 la cr\u00e8me", "cafe\u0301 a\u0300 la cre\u0300me"
    async with Client(running.url) as client:
        await client.register("composer", apart)
        for each in (composed, apart):
            await client.login("composer", each)
        await client.change_password(apart, PASSWORD)
        await client.login("composer", PASSWORD)


async def test_a_password_that_another_client_has_set_as_it_was_typed_is_tried_so(running: Running) -> None:
    apart = "cafe\u0301 a\u0300 la cre\u0300me"
    async with ClientSession() as http:
        await PlainClient(http, running.url).post("/register", username="other_client", password=apart)
    async with Client(running.url) as client:
        await client.login("other_client", apart)
        with pytest.raises(WrongPasswordError):
            await client.login("other_client", apart + "x")


@pytest.mark.parametrize("written_in", list(Format))
async def test_half_a_character_is_refused_before_anything_is_sent(running: Running, written_in: Format) -> None:
    async with Client(running.url, written_in=written_in) as client:
        with pytest.raises(InputError, match="unpaired surrogate"):
            await client.register("halved", "correct horse \ud83d")
        with pytest.raises(InputError, match="unpaired surrogate"):
            await client.login("halved", "correct horse \ud83d")


async def test_no_answer_is_told_without_a_word_of_tls() -> None:
    async with Client("http://127.0.0.1:9", backoff=Backoff(tries=1)) as client:
        with pytest.raises(NoAnswerError, match=r"^no answer from the server: 127\.0\.0\.1:9: .+") as raised:
            await client.me()
    assert "ssl" not in str(raised.value)


def test_files_are_named_by_texts_too(tmp_path: Path) -> None:
    with History(str(tmp_path / "history")), MlsCodec(str(tmp_path / "keys"), uuid4()):
        assert (tmp_path / "history").exists()
