"""Handlers of /undo, /delete and /purge, which take messages back."""

from collections.abc import Iterator
from itertools import islice

from conclave.client.chat import formatting
from conclave.client.chat.command_context import CommandContext, CommandError
from conclave.client.chat.rooms import Room
from conclave.client.errors import ClientError, GroupError, ResourceError, describe_error
from conclave.client.events import Message
from conclave.retention.durations import duration_words

PAGE = 100

MAX_SEARCHED = 10_000
"""The last 10,000 messages of a group are searched."""


async def undo(context: CommandContext, _: str) -> None:
    """Take back the user's last message in the group."""
    conversation, room = context.conversation, _room(context)
    if pending := conversation.send_queue.cancel_last(room):
        also = ", and will be taken back if it was sent already" if pending.is_cancelled else ""
        context.show_status(f"Your last message was cancelled{also}")
        return
    own = (each for each in _newest_first(context, room) if each.sender_id == conversation.user_id)
    last = next(own, None)
    if last is None:
        raise CommandError(f"you have no messages in {room.name}")
    await conversation.sync.take_back(room.group.group_id, last.sequence_num)
    context.show_status(f"Took back your message of {formatting.date_and_time(last.created_at)}")


async def take_back_matching(context: CommandContext, rest: str) -> None:
    """Take back the newest message with some words: the user's own, or for an admin anyone's. Asks for confirmation.

    The dialog does not show the text, which may expire before the answer.
    """
    conversation, room, words = context.conversation, _room(context), rest.lower()
    is_admin = room.is_admin(conversation.user_id)
    having = [each for each in _newest_first(context, room) if words in (each.text or "").lower()]
    found = next((each for each in having if each.sender_id == conversation.user_id), None)
    if found is None and is_admin:
        found = next(iter(having), None)
    if found is None:
        whose = "message" if is_admin else "message from you"
        raise CommandError(f"no {whose} in {room.name} contains these words; to delete the group, use /disband")
    is_own = found.sender_id == conversation.user_id
    name = "Your" if is_own else f"{await conversation.name(found.sender_id)}'s"
    text = f"{name} message of {formatting.date_and_time(found.created_at)} will be taken back. This cannot be undone."
    if await context.confirm("Take back this message?", text, "Take back"):
        await conversation.sync.take_back(room.group.group_id, found.sequence_num)


async def purge(context: CommandContext, rest: str) -> None:
    """Take back all messages of the last given time, of any sender, after a confirmation.

    First the server is asked which of them it still serves, and whether admins may take them back.
    """
    conversation, room = context.conversation, _room(context)
    if not room.is_admin(conversation.user_id):
        raise CommandError(f"only admins of {room.name} can use /purge; /undo and /delete take back your own messages")
    try:
        seconds = formatting.parse_lifetime(rest)
    except ValueError as error:
        raise CommandError(f"{error}: for example /purge 1h for the last hour") from error
    since = conversation.now() - seconds
    found = [each for each in _newest_first(context, room) if each.created_at >= since]
    served = await _served(context, room, found)
    found = [each for each in found if each.sequence_num in served]
    await _require_permission(context, room, found)
    if not found:
        context.show_status(f"No local messages of {room.name} are from the last {duration_words(seconds)}")
        return
    number, own = len(found), sum(each.sender_id == conversation.user_id for each in found)
    when, oldest = duration_words(seconds), formatting.date_and_time(found[-1].created_at)
    text = (
        f"{formatting.count(number, 'message')} of the last {when}, {own:,} of them yours, the oldest from {oldest},"
        " will be taken back. This cannot be undone."
    )
    if await context.confirm(f"Take back messages in {room.name}?", text, "Take back"):
        await _take_all(context, room, [each.sequence_num for each in found])


async def _served(context: CommandContext, room: Room, found: list[Message]) -> set[int]:
    """Return the numbers of the messages that the server still serves, from the oldest of ``found`` to the newest."""
    numbers = set[int]()
    after, last = (found[-1].sequence_num - 1, found[0].sequence_num) if found else (0, 0)
    while after < last:
        page = await context.conversation.client.fetch(room.group.group_id, after, PAGE)
        if not page:
            break
        numbers.update(each.sequence_num for each in page)
        after = page[-1].sequence_num
    return numbers


async def _require_permission(context: CommandContext, room: Room, found: list[Message]) -> None:
    """Raise CommandError unless the user may take back the newest of other users' messages."""
    conversation = context.conversation
    others = [each for each in found if each.sender_id != conversation.user_id][:1]
    for each in others:
        try:
            await conversation.client.take_back(room.group.group_id, each.sequence_num, dry_run=True)
        except GroupError as error:
            raise CommandError(
                "on this server only the sender can take a message back; /undo and /delete take back your own"
            ) from error


async def _take_all(context: CommandContext, room: Room, numbers: list[int]) -> None:
    """Take messages back one by one. If one is refused, say how many were taken back."""
    taken = 0
    for number in numbers:
        try:
            await context.conversation.sync.take_back(room.group.group_id, number)
        except ResourceError:
            continue  # gone meanwhile
        except ClientError as error:
            if not taken:
                raise
            done = f"{taken:,} of {formatting.count(len(numbers), 'message')}"
            raise CommandError(f"took back {done}, then: {describe_error(error)}") from error
        taken += 1
    context.show_status(f"Took back {formatting.count(taken, 'message')} in {room.name}")


def _newest_first(context: CommandContext, room: Room) -> Iterator[Message]:
    """Return the visible messages of a group, the newest first."""
    return islice(_all(context, room), MAX_SEARCHED)


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
