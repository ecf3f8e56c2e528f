"""The browser chat in real browsers at a real server: conversations, expiry, and what remains in the profiles."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.server import ServerProcess
from tests.web import fake
from tests.web.people import TIMER_SECONDS, Pair, found_in, server_on, set_expiry, talking, user_with_browser

pytestmark = pytest.mark.system

HELD = ["hello bob", "hello alice"]


async def test_from_an_empty_folder_to_the_first_message_in_few_steps(tmp_path: Path) -> None:
    """Two new users, and a server with default settings."""
    browser.found()
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server") as server:
        url = f"{server.url}/"
        async with user_with_browser(tmp_path, url, "alice") as alice, user_with_browser(tmp_path, url, "bob") as bob:
            for each in (alice, bob):
                await each.create_account()
            await talking(alice, bob)
    account = ["press Create an account", "fill in username", "fill in password", "fill in again", "press Enter"]
    begun = ["press New conversation", "fill in person", "press Enter"]
    said = ["write", "press Enter"]
    assert alice.steps == ["open the page", *account, *begun, *said]
    assert bob.steps == ["open the page", *account, "press Accept the invite", *said]


async def test_two_new_users_talk_and_expired_messages_disappear_from_both_screens(pair: Pair) -> None:
    alice, bob, *_ = pair
    await talking(alice, bob)
    # A reload changes nothing.
    await bob.open()
    await bob.sees("hello bob")
    assert [each for each in await bob.texts() if "hello" in each] == HELD
    # Taken back: gone for both.
    await alice.write("a slip of the pen")
    await bob.sees("a slip of the pen")
    await alice.take_back("a slip of the pen")
    await bob.misses("a slip of the pen")
    await alice.misses("a slip of the pen")
    # The lifetime of messages, with a preview.
    await alice.open_details()
    await alice.press("Change")
    await alice.tab.run("[...document.querySelectorAll('input[type=radio]')].at(-2).click()")
    await alice.tab.run("document.querySelector('dialog input[type=number]').focus()")
    await alice.tab.run("document.activeElement.select()")
    await fake.write(alice.tab, "1")
    await alice.choose("dialog select", 60)
    await alice.sees("No messages would be deleted now", ".outcome")
    await alice.press("Set lifetime")
    await bob.sees("1 minute", ".heading")
    await alice.close_dialogs()
    # A self-destructing message: its timer starts once Bob has seen it.
    await alice.write_self_destructing("burn after reading")
    await bob.sees("burn after reading")
    began = time.monotonic()
    await fake.press(bob.tab, "ArrowUp")
    await bob.misses("burn after reading")
    assert TIMER_SECONDS - 2 <= time.monotonic() - began <= TIMER_SECONDS + 6


async def test_a_message_written_while_the_server_is_down_is_sent_once(pair: Pair) -> None:
    alice, bob, folder, port, server = pair
    await talking(alice, bob)
    server.stop()
    await alice.write("written in a tunnel")
    await alice.sees("written in a tunnel", ".sending")
    await alice.open()  # the page opens from its cache, and the text is still there
    await alice.sees("written in a tunnel", ".sending")
    with server_on(folder, port):
        for each in (alice, bob):
            await each.hurry()
        await bob.sees("written in a tunnel")
        await asyncio.sleep(2)
        assert (await bob.texts()).count("written in a tunnel") == 1
        assert (await alice.texts()).count("written in a tunnel") == 1


async def test_an_expired_message_leaves_no_trace_in_the_profile_and_others_stay_readable(pair: Pair) -> None:
    alice, bob, folder, _, server = pair
    await talking(alice, bob)
    expired = ["the heron stands in the reeds", "der Otter hört es", "a word that burns", "a slip of the pen"]
    heron, otter, burning, slip = expired
    await alice.write_self_destructing(burning)
    await alice.write(slip)
    await bob.sees(slip)
    await fake.press(bob.tab, "ArrowUp")
    await alice.take_back(slip)
    await alice.create("pond")
    await alice.invite("bob")
    await bob.press("Accept the invite")
    await alice.is_with(1)
    await alice.write(heron)
    await bob.sees(heron)
    await bob.write(otter)
    await alice.sees(otter)
    await alice.write(f"> bob: {otter}\nI hear it too")  # and a reply with a quote
    await bob.sees("I hear it too")
    await set_expiry(server.url, "alice", "pond", 3)
    for each in (alice, bob):
        for text in (heron, otter):
            await each.misses(text)
        await each.go_to("bob" if each is alice else "alice")
        await each.sees("hello bob")
        await each.misses(burning)
        await each.misses(slip)
    assert found_in(folder, ["conclave-keys"]) != [], "the search finds stored data"
    assert found_in(folder, [*expired, *HELD, "I hear it too"]) == []
    for each in (alice, bob):
        each.tab.quit()
    assert found_in(folder, [*expired, *HELD, "I hear it too"]) == []
    for name in ("alice", "bob"):
        async with user_with_browser(folder, f"{server.url}/", name) as again:
            await again.watch_for([*expired, *HELD])
            await again.open()
            await again.go_to("bob" if name == "alice" else "alice")
            for text in HELD:
                await again.sees(text)
            assert sorted(await again.ever_shown()) == sorted(HELD)
    assert found_in(folder, expired) == []


async def test_a_message_that_expires_while_the_browser_is_closed_is_never_shown_again(pair: Pair) -> None:
    alice, bob, folder, port, server = pair
    await talking(alice, bob)
    expired = ["gone before the end", "gone meanwhile"]
    for text in expired:
        await alice.write_self_destructing(text)
        await bob.sees(text)
        await fake.press(bob.tab, "ArrowUp")
        await asyncio.sleep(TIMER_SECONDS / 2 if text == expired[0] else 0)
    await bob.misses(expired[0])
    assert expired[1] in await bob.texts()
    bob.tab.kill()
    await alice.misses(expired[1])
    await asyncio.sleep(2)
    async with AsyncExitStack() as stack:
        again = await stack.enter_async_context(user_with_browser(folder, bob.url, "bob"))
        await again.watch_for([*expired, *HELD])
        server.stop()
        for server_runs in (False, True):
            if server_runs:
                stack.enter_context(server_on(folder, port))
            await again.open()
            await again.go_to("alice")
            for text in HELD:
                await again.sees(text)
            assert sorted(await again.ever_shown()) == sorted(HELD)
        assert found_in(folder / "bob", expired) == []


async def test_logging_out_leaves_no_message_in_the_profile(pair: Pair) -> None:
    alice, bob, folder, *_ = pair
    await talking(alice, bob)
    await bob.press("Account")
    await bob.press("Log out")
    await bob.press("Log out and erase")
    await bob.sees("Log in", "button")
    await asyncio.sleep(3)
    assert found_in(folder / "bob", HELD) == []
    bob.tab.quit()
    assert found_in(folder / "bob", HELD) == []
