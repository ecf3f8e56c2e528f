"""Every size of the terminal: nothing is cut, nothing covered, and what is said in passing goes with its cause."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.client.chat.bars import KEYS, key_line
from conclave.client.chat.screen import QUIT_HINT
from conclave.client.chat.sidebar import WIDTH, split_label
from conclave.client.chat.status_messages import ERROR_SECONDS, INFO_SECONDS, MAX_STATUSES, StatusMessages
from tests.support.chatting import chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

HOUR = 3_600
LONG = "a_name_of_sixty_four_letters_which_is_the_longest_that_there_is"


def joined(screen: str) -> str:
    """What stands on a screen, without the places where rows end."""
    return "".join(row.strip(" ▌") for row in screen.splitlines()).replace(" ", "")


@pytest.mark.parametrize("is_plain", [False, True], ids=["screen", "plain"])
@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24), (200, 60)])
async def test_nothing_is_cut_at_any_size(
    server: ServerProcess, http: ClientSession, tmp_path: Path, size: tuple[int, int], is_plain: bool
) -> None:
    number = f"{size[0]}{is_plain:d}"
    session = await signed_up(tmp_path, server.url, f"user_{number}")
    name = f"{LONG[: 63 - len(number)]}_{number}"
    group = await new_group(session, name, expiry=HOUR)
    friend = await Client.register(http, server.url, name)
    await friend.join(str(group))
    address = f"https://example.org/{'long/' * 20}end"
    await friend.send(str(group), f"look: {address}".encode())
    async with chatting(tmp_path, size=size, is_plain=is_plain) as chat:
        await chat.open(name)
        await chat.shows("online", "not encrypted", "deleted after 1 hour", "F1 Help", "^Q Quit")
        assert "…" not in chat.screen
        beside = WIDTH if chat.sidebar.display else 0
        assert name in joined("\n".join(row[beside:] for row in chat.screen.splitlines())), chat.screen
        # The start of a long message may be scrolled off where the rows are few; then it is a page above.
        await until(lambda: address in joined(chat.timeline.text).replace(">", ""))
        for row in chat.screen.splitlines():
            assert len(row) <= size[0]
        if not is_plain:  # there it stands among the messages
            chat.chat_screen.show_status("one thing was said")
            chat.chat_screen.show_status("another one was said")
            await chat.shows("another one was said", "deleted after 1 hour")
            said = next(at for at, row in enumerate(chat.screen.splitlines()) if "another one was said" in row)
            assert size[1] - said <= 4, "it stands by the field, not over the heading"
        for command, end in (("/help", "Escape"), ("/info", "Escape")):
            await chat.do(command)
            await chat.asked(end)
            assert "…" not in chat.screen
            chat.press("escape")
            await until(lambda: chat.app.screen is chat.chat_screen)
        chat.type("/")
        await chat.shows("/new")
        assert "…" not in chat.screen


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_of_the_keys_those_are_shown_that_fit_whole(width: int) -> None:
    shown = key_line(width).plain
    assert len(shown) <= width
    told = shown.strip().split("  ")
    assert told == [f"{key} {label}" for key, label, _ in KEYS][: len(told)]
    assert width < 80 or len(told) == len(KEYS)


@pytest.mark.parametrize(
    ("label", "rows"),
    [
        ("short", ["short     "]),
        ("exactly_10", ["exactly_10"]),
        ("longer_than_ten", ["longer_tha", "  n_ten"]),
        ("Smith v. Jones, 2026", ["Smith v.  ", "  Jones, 2026"]),
    ],
)
def test_a_long_name_goes_on_below(label: str, rows: list[str]) -> None:
    first, more = split_label(label, 10)
    assert [first.plain, *more.plain.split("\n")[1:]] == rows
    first, more = split_label(LONG, 10)
    assert "".join([first.plain, *(each.strip() for each in more.plain.split("\n"))]) == LONG
    assert max(map(len, more.plain.split("\n"))) <= WIDTH - 2


class TestSayings:
    def test_what_is_said_goes_with_time_or_with_the_next_line_and_what_is_bad_later(self) -> None:
        statuses = StatusMessages()
        statuses.add("one")
        statuses.add("bad", is_error=True)
        assert not statuses.tick(INFO_SECONDS / 2)
        statuses.add("two")
        assert statuses.tick(INFO_SECONDS / 2)
        assert [each.text for each in statuses.all] == ["bad", "two"]
        assert statuses.clear_info()
        assert [each.text for each in statuses.all] == ["bad"]
        assert not statuses.clear_info()
        assert statuses.tick(ERROR_SECONDS - INFO_SECONDS)
        assert statuses.all == []

    def test_they_do_not_pile_up(self) -> None:
        statuses = StatusMessages()
        for number in range(20):
            statuses.add(f"number {number % 7}")
        assert [each.text for each in statuses.all] == [f"number {number}" for number in (3, 4, 5)]
        assert len(statuses.all) == MAX_STATUSES
        assert statuses.has("number 5")


async def test_ctrl_c_empties_the_field_and_leaves_by_the_second_one(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "interrupter")
    await new_group(session, "interrupted")
    async with chatting(tmp_path) as chat:
        await chat.open("interrupted")
        chat.type("half a line")
        await until(lambda: chat.composer.text == "half a line")
        chat.press("ctrl+c")
        await until(lambda: not chat.composer.text)
        assert QUIT_HINT not in chat.screen
        chat.press("ctrl+z")
        await until(lambda: chat.composer.text == "half a line", lambda: chat.composer.text)
        chat.press("ctrl+c")
        await until(lambda: not chat.composer.text)
        chat.press("ctrl+c")
        await chat.shows(QUIT_HINT)
        await chat.do("/go interrupted")
        await chat.hides(QUIT_HINT)
        chat.type("/go nowhere", "enter")
        await until(lambda: chat.wrong and chat.composer.selected_text)
        chat.press("ctrl+c")
        await until(lambda: not chat.composer.text)
        await chat.do("/info")
        await chat.asked("Escape")
        chat.press("ctrl+c")
        await until(lambda: chat.app.screen is chat.chat_screen)
        assert not chat.app._exit
        chat.press("ctrl+c")
        await chat.shows(QUIT_HINT)
        chat.press("ctrl+c")
        while not chat.app._exit:
            await chat.pilot.pause(0.05)


async def test_what_is_said_leaves_with_the_next_line(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "passer")
    await new_group(session, "passing")
    async with chatting(tmp_path) as chat:
        await chat.open("passing")
        await chat.do("/retry")
        await chat.shows("There is nothing to retry here", "kept forever")
        chat.type("and on", "enter")
        await chat.hides("There is nothing to retry here")
        await chat.shows("and on")
        await new_group(session, "and_another")
        await until(lambda: chat.conversation.rooms.by_name("and_another"))
        await chat.do("/retry")
        await chat.shows("There is nothing to retry here")
        chat.press("alt+down")
        await chat.hides("There is nothing to retry here")


@pytest.mark.parametrize("size", [(80, 7), (40, 6), (80, 5), (20, 4), (80, 3)])
async def test_on_few_rows_there_are_the_field_and_the_newest_message(
    server: ServerProcess, tmp_path: Path, size: tuple[int, int]
) -> None:
    name = f"tiny_{size[1]}"
    session = await signed_up(tmp_path, server.url, name)
    await new_group(session, name)
    async with chatting(tmp_path, size=size) as chat:
        await chat.open(name)
        for text in ("first", "second", "third"):
            chat.type(text, "enter")
        chat.type("typing")
        await chat.shows("third", "typing")
        chat.composer.prefill("/")
        await chat.shows("third", "/")
