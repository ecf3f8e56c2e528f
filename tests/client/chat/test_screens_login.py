"""The login of the chat: who one is, at which server, and what goes wrong there."""

from pathlib import Path

import pytest

from conclave.client.chat.login import LoginScreen
from conclave.client.chat.options import ChatOptions, create_mls_codec
from tests.support.chatting import SETTINGS, chatting, signed_up, until
from tests.support.client import PASSWORD
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system


async def test_an_account_is_created_with_the_keyboard_alone(server: ServerProcess, tmp_path: Path) -> None:
    async with chatting(tmp_path, server.url, online=False) as chat:
        await chat.shows(server.url, "Log in")
        chat.type("newcomer", "enter")
        chat.type(PASSWORD, "tab", "tab", "enter")
        await chat.shows("Repeat the password")
        chat.type("correct house", "enter")
        await chat.shows("The passwords do not match.")
        await chat.fill(again=PASSWORD)
        chat.press("enter")
        await chat.is_online()
        await chat.shows("You have no groups yet.", "newcomer at", "not encrypted: the server can read this")
        assert PASSWORD not in chat.screen
    async with chatting(tmp_path) as chat:
        await chat.shows("newcomer at")


async def test_who_has_an_account_logs_in_with_enter_and_a_wrong_password_is_said(
    server: ServerProcess, tmp_path: Path
) -> None:
    await signed_up(tmp_path / "before", server.url, "returning")
    async with chatting(tmp_path / "home", server.url, online=False, username="returning") as chat:
        chat.type("wrong horse", "enter")
        await chat.shows("Wrong name or password.")
        assert isinstance(chat.app.screen, LoginScreen)
        assert not list((tmp_path / "home").rglob("session"))
        await chat.fill(password=PASSWORD)
        chat.press("enter")
        await chat.is_online()
        await chat.shows("returning at")


async def test_a_name_that_is_taken_or_no_name_and_a_short_password_are_refused_in_words(
    server: ServerProcess, tmp_path: Path
) -> None:
    await signed_up(tmp_path / "before", server.url, "taken")
    async with chatting(tmp_path / "home", server.url, online=False) as chat:
        await chat.fill(name="taken", password=PASSWORD)
        await chat.click(chat.button("Create account"))
        await chat.shows("Repeat the password")
        await chat.fill(again=PASSWORD)
        await chat.click(chat.button("Create account"))
        await chat.shows("this username is taken")
        await chat.fill(name="no name", password="short", again="short")
        await chat.click(chat.button("Create account"))
        await chat.shows("username", "password")
        await chat.fill(name="", password="")
        await chat.click(chat.button("Log in"))
        await chat.shows("Enter your name and password.")


async def test_a_closed_server_asks_for_the_registration_token(tmp_path: Path) -> None:
    settings = f'registration_enabled = false\nregistration_token = "let_me_in"\n{SETTINGS}'
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server", settings) as server:
        async with chatting(tmp_path / "home", server.url, online=False) as chat:
            assert "Registration token" not in chat.screen
            await chat.fill(name="guest", password=PASSWORD)
            chat.press("tab", "tab", "enter")
            await chat.shows("Repeat the password")
            chat.type(PASSWORD, "enter")
            await chat.shows("Registration token (from the operator of the server)")
            await until(lambda: chat.app.focused and chat.app.focused.id == "token")
            chat.type("let_me_in", "enter")
            await chat.is_online()
            await chat.shows("guest at")


async def test_unencrypted_addresses_elsewhere_are_warned_of(tmp_path: Path) -> None:
    async with chatting(tmp_path, "http://chat.example.org", online=False) as chat:
        await chat.shows("http:// is not encrypted")
        await chat.fill(server="https://chat.example.org")
        await chat.hides("http:// is not encrypted")
        await chat.fill(server="localhost:8080")
        assert "http:// is not encrypted" not in chat.screen


async def test_a_server_that_does_not_answer_or_is_none_is_said_in_a_line(tmp_path: Path) -> None:
    async with chatting(tmp_path, "http://127.0.0.1:9", online=False, username="somebody") as chat:
        chat.type(PASSWORD, "enter")
        await chat.shows("no answer from the server")
        await chat.fill(server="http://[", password=PASSWORD)
        await chat.click(chat.button("Log in"))
        await chat.hides("no answer from the server", "Connecting")
        assert isinstance(chat.app.screen, LoginScreen)
        assert not list(tmp_path.rglob("session"))


async def test_a_session_file_that_others_may_read_ends_with_one_line(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "careless")
    ChatOptions(home=tmp_path).accounts.for_session(session).session_path.chmod(0o644)
    async with chatting(tmp_path, online=False) as chat:
        await until(lambda: chat.app._exit)
    assert chat.app.return_value
    assert "chmod 600" in chat.app.return_value
    assert "\n" not in chat.app.return_value


async def test_two_chats_with_one_account_do_not_mix(server: ServerProcess, tmp_path: Path) -> None:
    await signed_up(tmp_path, server.url, "doubled")
    async with chatting(tmp_path):
        async with chatting(tmp_path, online=False) as second:
            await until(lambda: second.app._exit)
        assert second.app.return_value
        assert "another conclave chat has" in second.app.return_value


async def test_a_login_that_would_put_another_device_out_asks_first(server: ServerProcess, tmp_path: Path) -> None:
    await signed_up(tmp_path / "first", server.url, "two_devices")
    async with chatting(tmp_path / "first", make_codec=create_mls_codec) as first:
        await first.do("/new two_devices")
        await first.shows("you are an admin")
        home = tmp_path / "second"
        async with chatting(
            home, server.url, online=False, username="two_devices", make_codec=create_mls_codec
        ) as second:
            second.type(PASSWORD, "enter")
            await second.shows("Replace your other device?", "can no longer send or")
            second.press("enter")
            await second.shows("Cancelled. Your other device is unchanged.")
            assert not list(home.rglob("session"))
            assert len(await first.conversation.client.sessions()) == 1
            await second.fill(password=PASSWORD)
            second.press("enter")
            await second.shows("Replace your other device?")
            second.press("left", "enter")
            await second.is_online()
            await second.shows("two_devices at")
