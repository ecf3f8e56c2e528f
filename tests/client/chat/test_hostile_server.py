"""What a server says outside of messages reaches the terminal without its escapes."""

from dataclasses import replace

from conclave.client.chat.app import described
from conclave.client.chat.top_line import top_line
from conclave.client.errors import RefusedError
from tests.support.conversing import NewChat

ESCAPES = ("\x1b", "\x07", "\u202e")


async def test_the_user_s_own_name_at_the_top(chat: NewChat) -> None:
    alice = await chat("alice")
    alice.client.resume(replace(alice.client.session, username="al\x1b]0;x\x07\u202eice"))
    shown = top_line(alice.conversation, None, 120, is_plain=False).plain
    assert "ice at 127.0.0.1" in shown
    assert not [each for each in ESCAPES if each in shown]


def test_the_refusal_with_which_the_chat_ends() -> None:
    said = described(RefusedError(400, 100, "no\x1b]52;c;AAAA\x07\u202e"))
    assert said.startswith("no")
    assert not [each for each in ESCAPES if each in said]
