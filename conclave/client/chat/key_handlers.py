"""Handlers of /verify and /reset, and the dialog about changed keys."""

from uuid import UUID

from conclave.client.chat import formatting, trust
from conclave.client.chat.command_context import CommandContext, CommandError
from conclave.client.chat.rooms import Room
from conclave.client.encryption.view import Trust

SAME, USE, LATER, CLOSE = "They match", "Use without comparing", "Not now", "Close"
COMPARE, SEND = "Compare", "Send anyway"


async def verify_user(context: CommandContext, rest: str) -> None:
    """Show the code to compare with another user, and store the result."""
    _only_if_encrypted(context)
    conversation, room = context.conversation, context.room
    member = conversation.rooms.member(room, rest) if room else None
    user_id = member or (await conversation.client.user(rest)).user_id
    if user_id == conversation.user_id:
        raise CommandError("you cannot verify yourself: name another user")
    conversation.rooms.set_name(user_id, rest)
    await _compare(context, user_id, room)


async def _compare(context: CommandContext, user_id: UUID, room: Room | None) -> None:
    """Let the user compare a member's key. If it changes meanwhile, show the new one."""
    keys, who = context.conversation.keys, context.conversation.rooms.display_name(user_id)
    own_name = formatting.display_name(context.conversation.client.session.username)
    while True:
        key = keys.key_of(user_id, room)
        if key is None:
            raise CommandError(f"there is no key of {who} yet: you need a group in common")
        answers = {
            Trust.UNKNOWN: (SAME, LATER),
            Trust.VERIFIED: (CLOSE,),
            Trust.CHANGED: (SAME, USE, LATER),
        }[key.trust]
        text = trust.comparison_text(keys.fingerprint, key, who, own_name)
        answer = await context.choose(f"Compare keys with {who}", text, answers)
        if answer in (LATER, CLOSE):
            return
        if keys.record_decision(key, is_compared=answer == SAME):
            context.show_status(f"{who} is verified" if answer == SAME else f"{who}'s new key is in use, unverified")
            return
        context.show_status(f"{who}'s key has changed again", is_error=True)


async def review_changed_keys(context: CommandContext, room: Room) -> None:
    """Ask about each changed key in a group, since messages wait to be sent there."""
    for key in context.conversation.keys.view(room).changed:
        who = context.conversation.rooms.display_name(key.user_id)
        text = f"{trust.change_warning(key, who)}\n\nYour message has not been sent yet."
        answer = await context.choose(f"{who}'s key has changed", text, (COMPARE, SEND, LATER), is_destructive=True)
        if answer == LATER:
            return
        if answer == SEND:
            context.conversation.keys.record_decision(key, is_compared=False)
        else:
            await _compare(context, key.user_id, room)


async def reset_keys(context: CommandContext, _: str) -> None:
    """Create new keys, after a confirmation."""
    _only_if_encrypted(context)
    if await context.confirm("Create new keys?", trust.RESET, "Create new keys"):
        await context.conversation.sync.reset()
        context.show_status("You have new keys. Others can compare them with /verify")


def _only_if_encrypted(context: CommandContext) -> None:
    if not context.conversation.keys.encrypts:
        raise CommandError("messages are not encrypted here, so there are no keys")
