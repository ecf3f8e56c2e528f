"""The lines around the messages: the top line, the heading of the group, and the keys at the bottom."""

from uuid import UUID

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from conclave.client.chat import formatting, trust
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room, missing_fetchers

KEYS = (
    ("F1", "Help", "screen.help"),
    ("^Q", "Quit", "app.quit"),
    ("F2", "Group", "screen.info"),
    ("^G", "Unread", "screen.step_unread"),
    ("^N", "New", "screen.prefill('/new ')"),
    ("Alt+↑↓", "Groups", "screen.step(1)"),
    ("^P", "More", "app.command_palette"),
)
"""Key, label and action of a click; the most important ones first."""


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


def heading(room: Room, user_id: UUID, *, is_plain: bool, is_low: bool) -> Content:
    """Return the heading of a group. ``is_low``: only the essentials, for low screens."""
    label = "title: " if is_plain else ""  # no colour distinguishes it from the name
    title = f"  {label}{formatting.sanitize(room.group.alias)}" if room.group.alias and not is_low else ""
    parts = _parts(room, is_plain=is_plain)
    if not is_low:
        parts.insert(1 if room.expiry is not None else 0, formatting.count(len(room.group.members), "member"))
        if room.is_admin(user_id):
            parts.insert(2 if room.expiry is not None else 1, "you are an admin")
    if not parts:
        return Content.assemble((room.name, "bold $accent"), title)
    details = (", " if is_plain else " · ").join(parts)
    return Content.assemble((room.name, "bold $accent"), title, "\n", (details, "$foreground 60%"))


def _parts(room: Room, *, is_plain: bool) -> list[str]:
    """Return the essentials: policy, legal hold, missing fetches, and the user's timer."""
    parts = [formatting.policy(room.expiry)] if room.expiry is not None else []
    if room.retention and room.retention.legal_hold:
        parts.append("legal hold")
    if room.expiry == formatting.AFTER_FETCH and (holding := missing_fetchers(room)):
        parts.append(f"waiting for {formatting.join_names(holding, 3)}")
    if room.self_destruct_seconds:
        mark = "" if is_plain else "✶ "
        parts.append(f"{mark}yours self-destruct {formatting.time_left(room.self_destruct_seconds)} after reading")
    return parts


class KeyLine(Static):
    """Keys and their meaning. A click on one acts like the key."""

    def on_resize(self) -> None:
        """Adjust to the width."""
        self.update(key_line(self.size.width))


def key_line(width: int) -> Content:
    """Return the keys that fit into a width."""
    shown = Content("")
    for key, label, action in KEYS:
        part = Content.assemble(("  " if shown else " "), (key, "$accent"), f" {label}")
        if shown.cell_length + part.cell_length > width:
            break
        shown += part.stylize(Style.from_meta({"@click": action}), 2 if shown else 1)
    return shown
