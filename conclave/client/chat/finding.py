"""Commands that look back: search what was said, and answer it."""

from conclave.client.chat import formatting, quotes
from conclave.client.chat.command_context import CommandContext, CommandError, Told
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room
from conclave.client.chat.searching import MOST_FOUND, excerpt, words_of
from conclave.client.events import Message

EVERYWHERE = "all "
"""A search for "all TEXT" is one for TEXT in all groups."""

UNQUOTED = "(a message that destroys itself)"
"""What is quoted of such a message: a quote would outlive it."""


async def search(context: CommandContext, rest: str) -> None:
    """Show where something was said in the group, or in all, and go to the place that the user chooses."""
    is_everywhere = rest.startswith(EVERYWHERE) or context.room is None
    typed = rest.removeprefix(EVERYWHERE).strip()
    words = words_of(typed)
    if not words:
        raise CommandError("type it as /search TEXT, or /search all TEXT")
    rooms = context.conversation.rooms.ordered() if is_everywhere or context.room is None else [context.room]
    found = await context.conversation.finder.search(rooms, words)
    where = "your groups" if is_everywhere or context.room is None else context.room.name
    if not found:
        more = "" if is_everywhere else "; /search all TEXT looks in all groups"
        context.say(f"{formatting.harmless(typed)} is nowhere in {where}, as far as it is here{more}")
        return

    parts = {(each.group_id, each.sequence_num): formatting.harmless(excerpt(words, each.text or "")) for each in found}

    def look() -> list[Told]:
        return [
            (each, _about(context.conversation, each, has_name=is_everywhere), parts[each.group_id, each.sequence_num])
            for each in context.conversation.finder.still_there(found)
        ]

    most = f"the newest {MOST_FOUND}" if len(found) == MOST_FOUND else f"{len(found)}"
    chosen = await context.pick(f"{formatting.harmless(typed)} in {where}: {most}", look)
    if chosen:
        context.go_to(chosen)


def _about(conversation: Conversation, message: Message, *, has_name: bool) -> str:
    """Say who has written a message and when; ``has_name``: and where."""
    rooms = conversation.rooms
    who = "you" if message.sender_id == conversation.user_id else rooms.called(message.sender_id)
    where = f"{rooms.name_of(message.group_id)}, " if has_name else ""
    return f"{where}{who}, {formatting.date_and_time(message.created_at)}"


def answered(conversation: Conversation, room: Room, rest: str) -> tuple[Message | None, str, str]:
    """Return which message a reply answers, who has sent that, and what the reply says."""
    first, _, text = rest.partition(" ")
    members = {each.user_id: each.username for each in room.group.members}
    if first.startswith("@") and first[1:] in members.values() and text.strip():
        return conversation.finder.answerable(room, first[1:]), first[1:], text.strip()
    found = conversation.finder.answerable(room)
    if found is None:
        return None, "", rest
    return found, members.get(found.sender_id) or conversation.rooms.called(found.sender_id), rest


async def reply(context: CommandContext, rest: str) -> None:
    """Send an answer, with the beginning of what it answers."""
    room = context.room
    if room is None:
        raise CommandError("open a group first")
    if not rest:
        raise CommandError("type it as /reply TEXT, or /reply @USER TEXT")
    message, username, text = answered(context.conversation, room, rest)
    if message is None:
        whom = f" of {formatting.called(username)}" if username else " of anybody else"
        raise CommandError(f"there is no message{whom} here that you have seen: there is nothing to answer")
    text = quotes.reply(username, _quotable(message), text)
    context.conversation.send_queue.send(room, text, room.self_destruct_seconds)
    context.go_to_end()


def _quotable(message: Message) -> str:
    return UNQUOTED if message.self_destruct_seconds else quotes.without(message.text or "")


def preview(conversation: Conversation, room: Room, rest: str) -> str:
    """Say which message is answered by what is being typed."""
    message, username, _ = answered(conversation, room, rest)
    if message is None:
        return ""
    return formatting.harmless(quotes.reply(username, _quotable(message), "").strip())
