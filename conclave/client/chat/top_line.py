"""The line at the top: who is where, whether there is a connection, and whether the server can read along."""

from textual.content import Content

from conclave.client.chat import formatting, trust
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


def top_line(conversation: Conversation, room: Room | None, width: int, *, is_plain: bool) -> Content:
    """Return the line for a screen of so many columns. ``room``: the open group."""
    session, offline = conversation.client.session, conversation.offline
    mark = "" if is_plain else "● " if offline is None else "○ "
    short = "nothing can be stored" if conversation.is_disk_full else "no connection"
    states = ["online"] if offline is None else [f"{short}: {formatting.harmless(offline)}", short]
    server = formatting.harmless(conversation.client.transport.url.host_port_subcomponent or "")
    encryption = _encryption(conversation, room)
    forms = _forms(encryption)
    fits = width - 1 - 2
    user = formatting.harmless(session.username)
    whole = [f" {user} at {server}  ", f" {user}  ", " "]
    # What is shorter leaves out the server, then why there is no connection, then the user's name.
    candidates = [(each, states[0]) for each in whole[:2]] + [(each, states[-1]) for each in whole[1:]]
    names, state = next(
        ((name, each) for name, each in candidates if len(name) + len(mark) + len(each) + len(forms[-1]) <= fits),
        (whole[-1], states[-1]),
    )
    left = Content.assemble((names, "bold"), (f"{mark}{state}", "$success" if offline is None else "$warning"))
    end = next((each for each in forms if len(each) <= fits - left.cell_length), forms[-1])
    left = left.truncate(max(1, fits - len(end)), ellipsis=True, pad=True)
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
