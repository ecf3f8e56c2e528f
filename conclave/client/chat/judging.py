"""Commands about keys: comparing them, judging one that has changed, making new ones for oneself."""

from uuid import UUID

from conclave.client.chat import formatting, trust
from conclave.client.chat.command_context import CommandContext, CommandError
from conclave.client.chat.rooms import Room
from conclave.client.encryption.view import Trust

SAME, USE, LATER, CLOSE = "It is the same", "Use it, not compared", "Not now", "Close"
COMPARE, SEND = "Compare", "Send all the same"


async def verify_user(context: CommandContext, rest: str) -> None:
    """Show the code to compare with another user, and note that it is the same."""
    _only_if_encrypted(context)
    conversation, room = context.conversation, context.room
    member = conversation.rooms.member(room, rest) if room else None
    user_id = member or (await conversation.client.user(rest)).user_id
    if user_id == conversation.user_id:
        raise CommandError("that is you: /verify takes the name of another user")
    conversation.rooms.learn(user_id, rest)
    await _compare(context, user_id, room)


async def _compare(context: CommandContext, user_id: UUID, room: Room | None) -> None:
    """Let a key be compared that somebody has in a group; if it changes meanwhile, the new one."""
    keys, who = context.conversation.keys, context.conversation.rooms.called(user_id)
    own_name = formatting.called(context.conversation.client.session.username)
    while True:
        key = keys.known(user_id, room)
        if key is None:
            raise CommandError(f"{who} has shown no key yet: that takes a group with both of you")
        answers = {
            Trust.UNKNOWN: (SAME, LATER),
            Trust.VERIFIED: (CLOSE,),
            Trust.CHANGED: (SAME, USE, LATER),
        }[key.trust]
        text = trust.comparison(keys.fingerprint, key, who, own_name)
        answer = await context.choose(f"Compare keys with {who}", text, answers)
        if answer in (LATER, CLOSE):
            return
        if keys.judge(key, is_compared=answer == SAME):
            context.say(f"{who} is verified" if answer == SAME else f"{who}'s new key is used, and not compared")
            return
        context.say(f"{who} has yet another key by now", is_bad=True)


async def judge_changed(context: CommandContext, room: Room) -> None:
    """Ask about each key that has changed in a group, since something waits to be sent there."""
    for key in context.conversation.keys.view(room).changed:
        who = context.conversation.rooms.called(key.user_id)
        text = f"{trust.changed(key, who)}\n\nWhat you have typed waits, and has not been sent."
        answer = await context.choose(f"{who} has another key", text, (COMPARE, SEND, LATER), is_grave=True)
        if answer == LATER:
            return
        if answer == SEND:
            context.conversation.keys.judge(key, is_compared=False)
        else:
            await _compare(context, key.user_id, room)


async def reset_keys(context: CommandContext, _: str) -> None:
    """Make new keys, if the user is sure."""
    _only_if_encrypted(context)
    if await context.ask("Make new keys?", trust.RESET, "Make new keys"):
        await context.conversation.sync.reset()
        context.say("You have new keys. Let others compare them: /verify NAME")


def _only_if_encrypted(context: CommandContext) -> None:
    if not context.conversation.keys.encrypts:
        raise CommandError("nothing is encrypted here, so there are no keys")
