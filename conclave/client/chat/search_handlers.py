"""Handlers of /search and /reply."""

from conclave.client.chat import formatting, quotes
from conclave.client.chat.command_context import CommandContext, CommandError, MessageChoice
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room
from conclave.client.chat.search import MAX_RESULTS, excerpt, parse_terms
from conclave.client.events import Message

EVERYWHERE = "all "
"""The argument "all TEXT" searches all groups."""

SELF_DESTRUCTING_QUOTE = "(a self-destructing message)"
"""Replaces the quote of such a message, which the quote would outlive."""


async def search(context: CommandContext, rest: str) -> None:
    """Show messages in the group, or in all groups, that contain the words, and go to the one that the user chooses."""
    is_everywhere = rest.startswith(EVERYWHERE) or context.room is None
    typed = rest.removeprefix(EVERYWHERE).strip()
    words = parse_terms(typed)
    if not words:
        raise CommandError("usage: /search TEXT or /search all TEXT")
    rooms = context.conversation.rooms.ordered() if is_everywhere or context.room is None else [context.room]
    found = await context.conversation.finder.search(rooms, words)
    where = "your groups" if is_everywhere or context.room is None else context.room.name
    if not found:
        more = "" if is_everywhere else "; /search all TEXT searches all groups"
        context.show_status(f"No local message in {where} contains {formatting.sanitize(typed)}{more}")
        return

    parts = {(each.group_id, each.sequence_num): formatting.sanitize(excerpt(words, each.text or "")) for each in found}

    def look() -> list[MessageChoice]:
        return [
            (each, _about(context.conversation, each, has_name=is_everywhere), parts[each.group_id, each.sequence_num])
            for each in context.conversation.finder.existing(found)
        ]

    most = f"the newest {MAX_RESULTS}" if len(found) == MAX_RESULTS else f"{len(found)}"
    chosen = await context.pick_message(f"{formatting.sanitize(typed)} in {where}: {most}", look)
    if chosen:
        context.go_to(chosen)


def _about(conversation: Conversation, message: Message, *, has_name: bool) -> str:
    """Describe a message by sender and time; ``has_name``: and by group."""
    rooms = conversation.rooms
    who = "you" if message.sender_id == conversation.user_id else rooms.display_name(message.sender_id)
    where = f"{rooms.name_of(message.group_id)}, " if has_name else ""
    return f"{where}{who}, {formatting.date_and_time(message.created_at)}"


def find_reply_target(conversation: Conversation, room: Room, rest: str) -> tuple[Message | None, str, str]:
    """Return the message that a reply answers, its sender, and the reply's text."""
    first, _, text = rest.partition(" ")
    members = {each.user_id: each.username for each in room.group.members}
    if first.startswith("@") and first[1:] in members.values() and text.strip():
        return conversation.finder.answerable(room, first[1:]), first[1:], text.strip()
    found = conversation.finder.answerable(room)
    if found is None:
        return None, "", rest
    return found, members.get(found.sender_id) or conversation.rooms.display_name(found.sender_id), rest


async def reply(context: CommandContext, rest: str) -> None:
    """Send a reply, with a quote of the message that it answers."""
    room = context.room
    if room is None:
        raise CommandError("open a group first")
    if not rest:
        raise CommandError("usage: /reply TEXT or /reply @USER TEXT")
    message, username, text = find_reply_target(context.conversation, room, rest)
    if message is None:
        whom = f" from {formatting.display_name(username)}" if username else ""
        raise CommandError(f"there is no message{whom} here that you have seen and could reply to")
    text = quotes.reply(username, _quotable(message), text)
    context.conversation.send_queue.send(room, text, room.self_destruct_seconds)
    context.go_to_end()


def _quotable(message: Message) -> str:
    return SELF_DESTRUCTING_QUOTE if message.self_destruct_seconds else quotes.strip_quotes(message.text or "")


def preview(conversation: Conversation, room: Room, rest: str) -> str:
    """Return the quote of the message that a reply being typed would answer."""
    message, username, _ = find_reply_target(conversation, room, rest)
    if message is None:
        return ""
    return formatting.sanitize(quotes.reply(username, _quotable(message), "").strip())
