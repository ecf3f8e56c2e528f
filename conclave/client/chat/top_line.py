"""The top line: user, server, connection and encryption."""

from textual.content import Content

from conclave.client.chat import formatting, trust
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


def top_line(conversation: Conversation, room: Room | None, width: int, *, is_plain: bool) -> Content:
    """Return the top line for a width. ``room``: the open group."""
    session, offline = conversation.client.session, conversation.offline
    mark = "" if is_plain else "● " if offline is None else "○ "
    short = "cannot save messages" if conversation.is_disk_full else "no connection"
    states = ["online"] if offline is None else [f"{short}: {formatting.sanitize(offline)}", short]
    server = formatting.sanitize(conversation.client.transport.url.host_port_subcomponent or "")
    encryption = _encryption(conversation, room)
    forms = _forms(encryption)
    fits = width - 1 - 2
    user = formatting.sanitize(session.username)
    prefixes = [f" {user} at {server}  ", f" {user}  ", " "]
    # Shorter forms omit the server, then the reason for the missing connection, then the user.
    candidates = [(each, states[0]) for each in prefixes[:2]] + [(each, states[-1]) for each in prefixes[1:]]
    names, state = next(
        ((name, each) for name, each in candidates if len(name) + len(mark) + len(each) + len(forms[-1]) <= fits),
        (prefixes[-1], states[-1]),
    )
    left = Content.assemble((names, "bold"), (f"{mark}{state}", "$success" if offline is None else "$warning"))
    end = next((each for each in forms if len(each) <= fits - left.cell_length), forms[-1])
    left = left.truncate(max(1, fits - len(end)), ellipsis=True, pad=True)
    return Content.assemble(left, "  ", (end, "$warning" if encryption.is_wrong else "$success"))


def _encryption(conversation: Conversation, room: Room | None) -> trust.EncryptionSummary:
    if not conversation.keys.encrypts:
        return trust.EncryptionSummary(trust.NOT_ENCRYPTED, is_wrong=True)
    return trust.encryption_summary(conversation.keys.view(room) if room else None, conversation.rooms.display_name)


def _forms(state: trust.EncryptionSummary) -> list[str]:
    """Return the status from its longest to its shortest form."""
    short = state.text.partition(":")[0] if state.is_wrong else state.text.partition(",")[0]
    page = [] if state.text == trust.NOT_ENCRYPTED else [f"{state.text} · {trust.DOC_PAGE}"]
    return [*page, state.text, short]
