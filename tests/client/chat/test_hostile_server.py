"""What a server says outside of messages reaches the terminal without its escapes."""

from dataclasses import replace

import pytest
from textual import events
from textual.app import App, ComposeResult

from conclave.client.chat.app import describe
from conclave.client.chat.bars import top_line
from conclave.client.chat.composer import Composer
from conclave.client.errors import RefusedError
from tests.support.chatting import screen_text
from tests.support.conversing import NewChat

ESCAPES = ("\x1b", "\x07", "\u202e")


async def test_the_user_s_own_name_at_the_top(chat: NewChat) -> None:
    alice = await chat("alice")
    alice.client.resume(replace(alice.client.session, username="al\x1b]0;x\x07\u202eice"))
    shown = top_line(alice.conversation, None, 120, is_plain=False).plain
    assert "ice at 127.0.0.1" in shown
    assert not [each for each in ESCAPES if each in shown]


def test_the_refusal_with_which_the_chat_ends() -> None:
    said = describe(RefusedError(400, 100, "no\x1b]52;c;AAAA\x07\u202e"))
    assert said.startswith("no")
    assert not [each for each in ESCAPES if each in said]


class Field(App[None]):
    """The field alone, with a member of whom the server says that."""

    def compose(self) -> ComposeResult:
        yield Composer(submit=lambda _: None, on_key_press=lambda _: False, names=lambda: ["bob\x1b]0;x\x07\u202e!"])


@pytest.mark.parametrize("way", ["a name is completed", "a command is given back", "something is pasted"])
async def test_what_comes_into_the_field_from_elsewhere(way: str) -> None:
    app = Field()
    async with app.run_test() as pilot:
        composer = app.query_one(Composer)
        composer.focus()
        match way:
            case "a name is completed":
                await pilot.press("@", "b", "tab")
            case "a command is given back":
                composer.restore_line("/accept club\x1b]0;x\x07\u202e!")
            case "something is pasted":
                composer.post_message(events.Paste("said\x1b]0;x\x07\u202e!"))
        await pilot.pause()
        shown = screen_text(app)
        assert "]0;x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}!" in shown
        assert not [each for each in ESCAPES if each in shown]
