"""Commands that take messages back: the user's last one, one with some words, or as an admin those of some time."""

from collections.abc import Iterator
from itertools import islice

from conclave.client.chat import formatting
from conclave.client.chat.command_context import CommandContext, CommandError
from conclave.client.chat.rooms import Room
from conclave.client.errors import ClientError, GroupError, ResourceError, describe_error
from conclave.client.events import Message
from conclave.retention.durations import duration_words

PAGE = 100

MOST_LOOKED_AT = 10_000
"""The last 10,000 messages of a group are looked at."""


async def undo(context: CommandContext, _: str) -> None:
    """Take back what the user has sent last to the group."""
    conversation, room = context.conversation, _room(context)
    if draft := conversation.send_queue.call_back(room):
        soon = "is not sent again, and taken back if it has come" if draft.is_called_back else "is not sent"
        context.say(f"Your last message {soon}")
        return
    own = (each for each in _newest_first(context, room) if each.sender_id == conversation.user_id)
    last = next(own, None)
    if last is None:
        raise CommandError(f"there is no message of yours in {room.name}")
    await conversation.sync.take_back(room.group.group_id, last.sequence_num)
    context.say(f"Your message of {formatting.date_and_time(last.created_at)} is taken back, for everybody")


async def take_back_with(context: CommandContext, rest: str) -> None:
    """Take back the newest message with some words: the user's, or else, for an admin, anybody's; if the user is sure.

    The question has no text of the message, which may be gone before it is answered.
    """
    conversation, room, words = context.conversation, _room(context), rest.lower()
    is_admin = room.is_admin(conversation.user_id)
    having = [each for each in _newest_first(context, room) if words in (each.text or "").lower()]
    found = next((each for each in having if each.sender_id == conversation.user_id), None)
    if found is None and is_admin:
        found = next(iter(having), None)
    if found is None:
        whose = "message" if is_admin else "message of yours"
        raise CommandError(f"no {whose} in {room.name} has these words; deleting the group is /disband")
    is_own = found.sender_id == conversation.user_id
    name = "Your" if is_own else f"{await conversation.name(found.sender_id)}'s"
    text = (
        f"{name} message of {formatting.date_and_time(found.created_at)} goes, for everybody. Nothing brings it back."
    )
    if await context.ask("Take it back?", text, "Take it back"):
        await conversation.sync.take_back(room.group.group_id, found.sequence_num)


async def purge(context: CommandContext, rest: str) -> None:
    """Take back what was sent to the group in the last so much time, by anybody, once the user has seen how much.

    The server is asked first what it still serves of that, and whether admins may take it back.
    """
    conversation, room = context.conversation, _room(context)
    if not room.is_admin(conversation.user_id):
        raise CommandError(f"only an admin of {room.name} can; /undo and /delete take back what is yours")
    try:
        seconds = formatting.parse_lifetime(rest)
    except ValueError as error:
        raise CommandError(f"{error}: /purge 1h takes back what was sent in the last hour") from error
    since = conversation.now() - seconds
    found = [each for each in _newest_first(context, room) if each.created_at >= since]
    served = await _served(context, room, found)
    found = [each for each in found if each.sequence_num in served]
    await _require_may(context, room, found)
    if not found:
        context.say(f"Nothing here was sent to {room.name} in the last {duration_words(seconds)}")
        return
    number, own = len(found), sum(each.sender_id == conversation.user_id for each in found)
    when, oldest = duration_words(seconds), formatting.date_and_time(found[-1].created_at)
    text = (
        f"{formatting.count(number, 'message')} of the last {when}, {own:,} of them yours, the oldest of {oldest}, will"
        " go, for everybody. Nothing brings them back."
    )
    if await context.ask(f"Take back what was sent to {room.name}?", text, "Take it back"):
        await _take_all(context, room, [each.sequence_num for each in found])


async def _served(context: CommandContext, room: Room, found: list[Message]) -> set[int]:
    """Return the numbers of what the server serves now, from the oldest of some messages to the newest."""
    numbers = set[int]()
    after, last = (found[-1].sequence_num - 1, found[0].sequence_num) if found else (0, 0)
    while after < last:
        page = await context.conversation.client.fetch(room.group.group_id, after, PAGE)
        if not page:
            break
        numbers.update(each.sequence_num for each in page)
        after = page[-1].sequence_num
    return numbers


async def _require_may(context: CommandContext, room: Room, found: list[Message]) -> None:
    """Raise CommandError unless the server would let the user take back the newest of somebody else's messages."""
    conversation = context.conversation
    others = [each for each in found if each.sender_id != conversation.user_id][:1]
    for each in others:
        try:
            await conversation.client.take_back(room.group.group_id, each.sequence_num, dry_run=True)
        except GroupError as error:
            raise CommandError(
                "the operator of this server lets nobody but its sender take a message back; /undo and /delete take"
                " back what is yours"
            ) from error


async def _take_all(context: CommandContext, room: Room, numbers: list[int]) -> None:
    """Take messages back one after the other; if one is refused, say how many are gone by then."""
    taken = 0
    for number in numbers:
        try:
            await context.conversation.sync.take_back(room.group.group_id, number)
        except ResourceError:
            continue  # it has gone meanwhile
        except ClientError as error:
            if not taken:
                raise
            done = f"{taken:,} of {formatting.count(len(numbers), 'message')}"
            raise CommandError(f"{done} are taken back, then: {describe_error(error)}") from error
        taken += 1
    context.say(f"{formatting.count(taken, 'message')} of {room.name} taken back, for everybody")


def _newest_first(context: CommandContext, room: Room) -> Iterator[Message]:
    """Return the messages of a group that may be shown, the newest first."""
    return islice(_all(context, room), MOST_LOOKED_AT)


def _all(context: CommandContext, room: Room) -> Iterator[Message]:
    history, group_id = context.conversation.history, room.group.group_id
    page = history.last_messages(group_id, PAGE)
    while page:
        yield from reversed(page)
        page = history.earlier_messages(group_id, page[0].sequence_num, PAGE)


def _room(context: CommandContext) -> Room:
    if context.room is None:
        raise CommandError("open a group first")
    return context.room
