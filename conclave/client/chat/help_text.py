"""The longer texts of the chat: a welcome, keys and commands, what there is to know of a group."""

from textual.content import Content

from conclave.client.chat import formatting, trust
from conclave.client.chat.commands import ALIASES, COMMANDS, find
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room, held_by
from conclave.client.errors import RefusedError
from conclave.retention.durations import duration_words

WELCOME = """You are in no group yet.

/new NAME     makes one
/find         lists public groups
/help         has all the rest

An invite stands on the left when it comes.
/accept takes it."""

CHOOSE = """No group is open.

Choose one on the left, by Alt+↓ or by /go NAME."""

CONNECTING = "There is no connection yet. Your groups come as soon as the server answers."

KEYS = (
    ("Enter", "send"),
    ("Alt+Enter, Ctrl+J", "a new line"),
    ("Tab", "complete a command or @name; else go on: groups, messages, typing"),
    ("↑ ↓", "former commands, in an empty line"),
    ("Alt+↑ Alt+↓", "the group before, the next one"),
    ("Ctrl+G", "what is unread: in this group, or else in the next one"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+End", "the newest messages"),
    ("Ctrl+N", "make a group"),
    ("F1", "this help"),
    ("F2", "about the group: members, policy, who holds it back"),
    ("Ctrl+P", "a list of what can be done, and colours"),
    ("Escape", "back to typing; in the empty field: count what is unread here as read"),
    ("Ctrl+Q", "leave"),
)

MARKS = (
    ("● ◕ ◑ ◔ ○", "how much is left of a message's life; beside it the time"),
    ("✶", "goes so long after you have read it"),
    ("@2", "beside a group: so many of its unread messages mean you, by @ and your name"),
    ("▸", "the message that you went to from what /search has found"),
    ("⊘", "the group is muted: it does not call"),
    ("∞", "messages of the group are kept"),
    ("fetched", "deleted at the server once all members have fetched them; they stay here"),
)


def help_content() -> Content:
    """Return keys, marks and commands."""
    usages = [(each.usage, each.says) for each in COMMANDS.values()]
    parts = [_table("Keys", KEYS), _table("Marks", MARKS), _table("Commands", usages)]
    others = formatting.listed([f"/{name} for /{means}" for name, means in ALIASES.items()], len(ALIASES))
    note = (
        "A command can be cut as long as it stays the only one: /exp 1h. // sends a text that begins with a slash."
        f" Words of other chats: {others}."
    )
    return Content("\n\n").join([*parts, Content(note)])


def about_command(name: str) -> str | None:
    """Say how a command is typed and what it does; None if there is none of that name."""
    command = find(name.removeprefix("/"))
    return f"{command.usage}: {command.says}" if command else None


async def about(conversation: Conversation, room: Room) -> str:
    """Say what there is to know of a group. Raises ClientError."""
    group, client = room.group, conversation.client
    retention = await client.retention(group.group_id)
    room.retention = retention
    lines = [f"Title: {formatting.harmless(group.alias)}"] if group.alias else []
    lines.append("Everybody can find and join it." if group.visibility == "public" else "By invite only.")
    lines.append(f"Messages are {formatting.policy(retention.effective_expiry_seconds)}.")
    setter = retention.expiry_set_by
    by = f", by {await conversation.name(setter)}" if setter else ""
    lines.append(f"  set in the group: {_setting(retention.group_expiry_seconds)}{by}")
    lines.append(f"  set by the server: {_setting(retention.server_retention_seconds, server=True)}")
    if retention.min_lifetime_seconds > 0:
        lines.append(f"  never erased before {duration_words(retention.min_lifetime_seconds)}")
    if retention.legal_hold:
        lines.append(
            "  a legal hold keeps what is erased from being destroyed at the server; it is hidden all the same"
        )
    if holding := held_by(room):
        lines.append(f"Not fetched yet by {formatting.listed(holding, 20)}: that holds deletion back.")
    keys, view = conversation.keys, conversation.keys.view(room)
    lines += ["", *trust.about(view, keys.fingerprint, conversation.rooms.called)]
    lines += ["", formatting.count(len(group.members), "member") + ":"]
    for each in sorted(group.members, key=lambda member: (member.role, member.username.lower())):
        # The alias comes last: it is free text, and could say "admin" too.
        alias = f"  alias: {formatting.harmless(each.alias)}" if each.alias else ""
        role = "  admin" if each.role == "admin" else ""
        key = keys.known(each.user_id, room) if each.user_id not in view.keyless else None
        is_shown = keys.encrypts and each.user_id != conversation.user_id
        lines.append(
            f"  {formatting.called(each.username)}{role}{f'  {trust.in_words(key)}' if is_shown else ''}{alias}"
        )
        lines += [f"  {key.fingerprint}"] if key and is_shown else []
    if room.is_admin(conversation.user_id):
        lines += await _for_admins(conversation, room)
    return "\n".join(lines)


async def _for_admins(conversation: Conversation, room: Room) -> list[str]:
    group_id = room.group.group_id
    try:
        invited = [await conversation.name(each.invitee_id) for each in await conversation.client.invites_of(group_id)]
        banned = [formatting.called(each.username) for each in await conversation.client.banned(group_id)]
    except RefusedError:
        return []  # no admin any more
    lines = [f"Invited: {formatting.listed(invited, 20)}"] if invited else []
    return ["", *lines, *([f"Banned: {formatting.listed(banned, 20)}"] if banned else [])]


def _setting(seconds: int, *, server: bool = False) -> str:
    if seconds == formatting.KEEP:
        return "nothing" if server else "nothing, as the server has it"
    return "until all have fetched them" if seconds == formatting.AFTER_FETCH else duration_words(seconds)


def _table(title: str, lines: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> Content:
    width = max(len(left) for left, _ in lines)
    if width > 24:
        rows = [Content.assemble((left, "$accent"), f"\n    {right}") for left, right in lines]
    else:
        rows = [Content.assemble((left.ljust(width), "$accent"), f"  {right}") for left, right in lines]
    return Content("\n").join([Content(title).stylize("bold"), *rows])
