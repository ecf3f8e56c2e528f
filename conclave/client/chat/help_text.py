"""The longer texts: welcome, help, and details of a group."""

from textual.content import Content

from conclave.client.chat import formatting, trust
from conclave.client.chat.commands import ALIASES, COMMANDS, find
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room, missing_fetchers
from conclave.client.errors import RefusedError
from conclave.retention.durations import duration_words

WELCOME = """You have no groups yet.

/new NAME     create a group
/find         list public groups
/help         show all commands

Invites appear on the left.
/accept accepts one."""

CHOOSE = """No group is open.

Choose one on the left, with Alt+↓ or with /go NAME."""

CONNECTING = "Connecting. Your groups appear as soon as the server answers."

KEYS = (
    ("Enter", "send"),
    ("Alt+Enter, Ctrl+J", "new line"),
    ("Tab", "complete a command or @name, or go to groups, messages, input"),
    ("↑ ↓", "recent commands, in the empty input field"),
    ("Alt+↑ Alt+↓", "previous and next group"),
    ("Ctrl+G", "next unread message"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+End", "newest messages"),
    ("Ctrl+N", "create a group"),
    ("F1", "this help"),
    ("F2", "group details: members, policy, who has not fetched yet"),
    ("Ctrl+P", "command palette, themes"),
    ("Escape", "back to the input field; if it is empty: mark the group as read"),
    ("Ctrl+Q", "quit"),
)

SYMBOLS = (
    ("● ◕ ◑ ◔ ○", "time left before the message expires"),
    ("✶", "self-destructs this long after you have read it"),
    ("@2", "unread mentions of you in the group"),
    ("▸", "the search result that you opened"),
    ("⊘", "the group is muted"),
    ("∞", "messages of the group are kept forever"),
    ("fetched", "deleted from the server once all members have fetched them; your copy stays"),
)


def help_content() -> Content:
    """Return the help: keys, symbols and commands."""
    usages = [(each.usage, each.description) for each in COMMANDS.values()]
    parts = [_table("Keys", KEYS), _table("Symbols", SYMBOLS), _table("Commands", usages)]
    others = formatting.join_names([f"/{name} for /{means}" for name, means in ALIASES.items()], len(ALIASES))
    note = (
        "Commands can be shortened if they stay unique: /exp 1h. Start a message with // to send a leading slash."
        f" Aliases: {others}."
    )
    return Content("\n\n").join([*parts, Content(note)])


def about_command(name: str) -> str | None:
    """Return the usage of a command; None for an unknown one."""
    command = find(name.removeprefix("/"))
    return f"{command.usage}: {command.description}" if command else None


async def about(conversation: Conversation, room: Room) -> str:
    """Describe a group. Raises ClientError."""
    group, client = room.group, conversation.client
    retention = await client.retention(group.group_id)
    room.retention = retention
    lines = [f"Title: {formatting.sanitize(group.alias)}"] if group.alias else []
    lines.append(
        "Public: everyone can find and join it." if group.visibility == "public" else "Private: by invite only."
    )
    lines.append(f"Messages are {formatting.policy(retention.effective_expiry_seconds)}.")
    setter = retention.expiry_set_by
    by = f", by {await conversation.name(setter)}" if setter else ""
    lines.append(f"  group setting: {_setting(retention.group_expiry_seconds)}{by}")
    lines.append(f"  server default: {_setting(retention.server_retention_seconds, server=True)}")
    if retention.min_lifetime_seconds > 0:
        lines.append(f"  minimum lifetime: {duration_words(retention.min_lifetime_seconds)}")
    if retention.legal_hold:
        lines.append("  legal hold: the server keeps expired messages, hidden from members")
    if holding := missing_fetchers(room):
        lines.append(f"Not fetched yet by {formatting.join_names(holding, 20)}; deletion waits for that.")
    keys, view = conversation.keys, conversation.keys.view(room)
    lines += ["", *trust.describe_group(view, keys.fingerprint, conversation.rooms.display_name)]
    lines += ["", formatting.count(len(group.members), "member") + ":"]
    for each in sorted(group.members, key=lambda member: (member.role, member.username.lower())):
        # The alias comes last, since it is free text and could be "admin".
        alias = f"  alias: {formatting.sanitize(each.alias)}" if each.alias else ""
        role = "  admin" if each.role == "admin" else ""
        key = keys.key_of(each.user_id, room) if each.user_id not in view.keyless else None
        is_shown = keys.encrypts and each.user_id != conversation.user_id
        lines.append(
            f"  {formatting.display_name(each.username)}{role}{f'  {trust.key_status(key)}' if is_shown else ''}{alias}"
        )
        lines += [f"  {key.fingerprint}"] if key and is_shown else []
    if room.is_admin(conversation.user_id):
        lines += await _for_admins(conversation, room)
    return "\n".join(lines)


async def _for_admins(conversation: Conversation, room: Room) -> list[str]:
    group_id = room.group.group_id
    try:
        invited = [await conversation.name(each.invitee_id) for each in await conversation.client.invites_of(group_id)]
        banned = [formatting.display_name(each.username) for each in await conversation.client.banned(group_id)]
    except RefusedError:
        return []  # no longer an admin
    lines = [f"Invited: {formatting.join_names(invited, 20)}"] if invited else []
    return ["", *lines, *([f"Banned: {formatting.join_names(banned, 20)}"] if banned else [])]


def _setting(seconds: int, *, server: bool = False) -> str:
    if seconds == formatting.KEEP:
        return "none" if server else "none (server default)"
    return "delete after all have fetched" if seconds == formatting.AFTER_FETCH else duration_words(seconds)


def _table(title: str, lines: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> Content:
    width = max(len(left) for left, _ in lines)
    if width > 24:
        rows = [Content.assemble((left, "$accent"), f"\n    {right}") for left, right in lines]
    else:
        rows = [Content.assemble((left.ljust(width), "$accent"), f"  {right}") for left, right in lines]
    return Content("\n").join([Content(title).stylize("bold"), *rows])
