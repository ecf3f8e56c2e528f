"""The line at the top: who is where, whether there is a connection, and whether the server can read along."""

from textual.content import Content

from conclave.client.chat import formatting, trust
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


def top_line(conversation: Conversation, room: Room | None, width: int, *, is_plain: bool) -> Content:
    """Return the line for a screen of so many columns. ``room``: the open group."""
    session, offline = conversation.client.session, conversation.offline
    marks = ("", "") if is_plain else ("● ", "○ ")
    online = f"{marks[0]}online", "$success"
    state = online if offline is None else (f"{marks[1]}no connection: {offline}", "$warning")
    server = formatting.harmless(conversation.client.transport.url.host_port_subcomponent or "")
    left = Content.assemble((f" {session.username} at {server}  ", "bold"), (formatting.harmless(state[0]), state[1]))
    encryption = _encryption(conversation, room)
    fits = width - 1 - left.cell_length - 2
    end = next((each for each in _forms(encryption) if len(each) <= fits), _forms(encryption)[-1])
    left = left.truncate(max(1, width - 1 - len(end) - 2), ellipsis=True, pad=True)
    return Content.assemble(left, "  ", (end, "$warning" if encryption.is_wrong else "$success"))


def _encryption(conversation: Conversation, room: Room | None) -> trust.State:
    if not conversation.keys.encrypts:
        return trust.State(trust.NOT_ENCRYPTED, is_wrong=True)
    return trust.state_of(conversation.keys.view(room) if room else None, conversation.rooms.called)


def _forms(state: trust.State) -> list[str]:
    """Return what to say from the longest to the shortest: who has a small screen is to know the worst too."""
    short = state.text.partition(":")[0] if state.is_wrong else state.text.partition(",")[0]
    page = [] if state.text == trust.NOT_ENCRYPTED else [f"{state.text} · {trust.PAGE}"]
    return [*page, state.text, short]
