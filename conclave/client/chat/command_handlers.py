"""What commands do. Each takes a context, and what was typed after its name; it raises CommandError and ClientError."""

import re
from contextlib import suppress
from uuid import UUID

from conclave.client import names
from conclave.client.chat import formatting
from conclave.client.chat.command_context import CommandContext, CommandError, Work
from conclave.client.chat.formatting import AFTER_FETCH
from conclave.client.chat.rooms import Room, named
from conclave.client.errors import ClientError, ResourceError
from conclave.errors import ErrorCode
from conclave.retention.durations import duration_words
from conclave.wire.fields import MAX_SELF_DESTRUCT_SECONDS
from conclave.wire.results import GroupUpdated, InviteInfo

MOST_OF_TITLE = 64
"""A title has at most 64 characters."""


async def make_group(context: CommandContext, rest: str) -> None:
    """Make a group, and open it. What cannot be a name is its title, of which a name is made."""
    words = rest.split()
    kind = words.pop() if len(words) > 1 and words[-1] in ("public", "private") else ""
    typed = " ".join(words)
    title = "" if re.fullmatch(r"[a-zA-Z0-9_]+", typed) else typed
    if len(title) > MOST_OF_TITLE:
        raise CommandError(f"a title has at most {MOST_OF_TITLE} characters, this one {len(title)}")
    name = names.check_name("group_name", (title and names.name_from_title(title)) or typed)
    group_id = await _create(context, name, title, is_public=kind == "public")
    await context.conversation.renew()
    context.go(group_id, is_awaited=True)
    room = context.conversation.rooms.all.get(group_id)
    context.say(
        f"{room.label if room else formatting.called(name)} is yours: bring people in with /invite NAME, and let it"
        " forget with /expire 1h"
    )


async def _create(
    context: CommandContext, name: str, title: str, *, is_public: bool, is_made: bool | None = None
) -> UUID:
    """Make a group. A name that was made, as of a title, gets a number if it is taken."""
    create = context.conversation.sync.membership.create
    is_made = bool(title) if is_made is None else is_made
    others = [f"{name[: names.MAX_LENGTH - 2]}_{number}" for number in range(2, 10)] if is_made else []
    for each in others:
        try:
            return await create(name, title, public=is_public)
        except ResourceError as error:
            if error.code != ErrorCode.RESOURCE_CONFLICT:
                raise
        name = each
    return await create(name, title, public=is_public)


async def list_groups(context: CommandContext, _: str) -> None:
    """List the user's groups and invites."""
    rooms = context.conversation.rooms
    lines = [
        formatting.titled(each.group.group_name, each.group.alias)
        + (f": {formatting.policy(each.expiry)}" if each.expiry is not None else "")
        + (f", {formatting.unread(each.unread)} unread" if each.unread else "")
        + (f", {formatting.unread(len(each.mentions))} of them mean you" if each.mentions else "")
        + (", muted" if each.is_muted(context.conversation.now()) else "")
        for each in rooms.ordered()
    ]
    lines += [
        f"invited to {formatting.titled(each.group_name, each.group_alias)}"
        f" by {formatting.called(each.inviter_username)}"
        for each in rooms.invites
    ]
    await context.tell("Your groups", "\n".join(lines) or "There are none yet.")


async def find_public(context: CommandContext, rest: str) -> None:
    """List public groups."""
    found = await context.conversation.client.public_groups(rest)
    lines = [
        f"{formatting.called(each.group_name)}  {formatting.count(each.member_count, 'member')}"
        f"  {formatting.harmless(each.alias)}"
        for each in found
    ]
    await context.tell(
        "Public groups", "\n".join(lines) + "\n\n/join NAME takes you in" if lines else "There are none."
    )


async def join_group(context: CommandContext, rest: str) -> None:
    """Join a public group, and open it."""
    own = context.conversation.rooms.by_name(rest)
    if own and own.group.group_name == rest:
        context.go(own.group.group_id, is_awaited=True)
        return
    found = await context.conversation.client.public_groups(rest)
    group = named(rest, found, lambda each: each.group_name)
    if group is None:
        raise CommandError(f"there is no public group {formatting.harmless(rest)}; /find lists those that there are")
    try:
        await context.conversation.sync.membership.join(group.group_id)
    finally:
        context.conversation.want_renewal()  # the answer may be lost, and no event tells of it
    await context.conversation.renew()
    context.go(group.group_id, is_awaited=True)


async def write_to_user(context: CommandContext, rest: str) -> None:
    """Open the group of the user and somebody else, or make it; and send a text there.

    Who is only invited could not read it: then it stands in the field, to be sent later.
    """
    username, _, text = rest.partition(" ")
    conversation = context.conversation
    user = await conversation.client.user(username)
    if user.user_id == conversation.user_id:
        raise CommandError("that is you")
    both = {conversation.user_id, user.user_id}
    name = f"{conversation.client.session.username}_and_{user.username}"[: names.MAX_LENGTH]
    rooms = conversation.rooms.ordered()
    room = next((each for each in rooms if {it.user_id for it in each.group.members} == both), None)
    room = room or next((each for each in rooms if each.group.group_name == name), None)
    if room is None:
        group_id = await _create(context, name, "", is_public=False, is_made=True)
        try:
            await conversation.sync.membership.invite(group_id, user.username)
        except ClientError:
            with suppress(ClientError):
                await conversation.client.delete_group(group_id)
            raise
        await conversation.renew()
        room = conversation.rooms.all[group_id]
        context.say(f"{formatting.called(user.username)} is invited to {room.name}")
    is_there = any(each.user_id == user.user_id for each in room.group.members)
    text = text.strip()
    if text and not is_there:
        room.typed = text
        context.say(f"{formatting.called(user.username)} has not come in yet, and could not read it: send it then")
    context.go(room.group.group_id, is_awaited=True)
    if text and is_there:
        conversation.send_queue.send(room, text, room.self_destruct_seconds)
        context.go_to_end()


async def go_to(context: CommandContext, rest: str) -> None:
    """Open one of the user's groups."""
    context.go(_room_of(context, rest).group.group_id)


async def put_aside(context: CommandContext, rest: str) -> None:
    """Count as read what is unread in the group, or in all."""
    if rest not in ("", "all"):
        raise CommandError("type it as /read, or /read all")
    conversation = context.conversation
    rooms = [*conversation.rooms.all.values()] if rest else [_room(context)]
    for room in rooms:
        conversation.put_aside(room)
    if left := sum(each.unread for each in rooms):
        context.say(f"{formatting.count(left, 'message')} stay unread: they destroy themselves once you have seen them")


async def mute_group(context: CommandContext, rest: str) -> None:
    """Let a group not call, for a time or for good."""
    name, _, last = rest.rpartition(" ")
    try:
        seconds: int | None = formatting.parse_lifetime(last)
    except ValueError:
        name, seconds = rest, None
    room = _room_of(context, name.strip())
    context.conversation.mute(room, seconds)
    how_long = "until /unmute" if seconds is None else f"for {duration_words(seconds)}"
    context.say(f"{room.name} does not call {how_long}")


async def unmute_group(context: CommandContext, rest: str) -> None:
    """Let a group call again."""
    room = _room_of(context, rest)
    context.conversation.mute(room, 0)
    context.say(f"{room.name} calls when somebody means you")


async def invite_user(context: CommandContext, rest: str) -> None:
    """Invite somebody to the group."""
    room = _room(context)
    await context.conversation.sync.membership.invite(room.group.group_id, rest)
    context.say(f"{formatting.called(rest)} is invited to {room.name}")


async def withdraw_invite(context: CommandContext, rest: str) -> None:
    """Withdraw an invite to the group."""
    room = _room(context)
    user = await context.conversation.client.user(rest)
    await context.conversation.withdraw_invite(room.group.group_id, user.user_id)
    context.say(f"{formatting.called(rest)} is not invited to {room.name} any more")


async def accept_invite(context: CommandContext, rest: str) -> None:
    """Accept an invite, and open its group."""
    invite = await _one_invite(context, rest)
    await context.conversation.answer(invite.invite_id, accept=True)
    if invite.group_id in context.conversation.rooms.all:
        context.go(invite.group_id, is_awaited=True)


async def decline_invite(context: CommandContext, rest: str) -> None:
    """Decline an invite."""
    await context.conversation.answer((await _one_invite(context, rest)).invite_id, accept=False)


async def _one_invite(context: CommandContext, name: str) -> InviteInfo:
    """Return the invite to the group that is named, or the only one. Raises CommandError."""
    found = _find_invite(context, name)
    if found is None:
        await context.conversation.renew()  # the chat announces an invite before it has read the list again
        found = _find_invite(context, name)
    if found:
        return found
    names = formatting.listed([formatting.called(each.group_name) for each in context.conversation.rooms.invites])
    raise CommandError(f"name one of the groups that you are invited to: {names}" if names else "you have no invites")


def _find_invite(context: CommandContext, name: str) -> InviteInfo | None:
    invites = context.conversation.rooms.invites
    if name:
        return named(name, invites, lambda each: each.group_name)
    return invites[0] if len(invites) == 1 else None


async def set_expiry(context: CommandContext, rest: str) -> None:
    """Set how long messages live; if that hides something, once the user has seen what."""
    room, conversation = _room(context), context.conversation
    group_id = room.group.group_id
    try:
        expiry = formatting.parse_expiry(rest)
    except ValueError as error:
        raise CommandError(f"{error}; or fetched: until all have fetched it; or off: as the server has it") from error
    would = await conversation.lifetimes.change(group_id, expiry, dry_run=True)
    effective = await conversation.lifetimes.effective(group_id, expiry)
    decided = ""
    if room.retention and room.retention.policy_source == "override":
        decided = " The operator has decided that for this group: what you set is stored, and has no effect."
    if would.messages_expiring:
        what = _deleted(would, conversation.history.keep_after_fetch) if effective == AFTER_FETCH else _hidden(would)
        text = f"From now on messages of {room.name} are {formatting.policy(effective)}.{decided}\n\n{what}"
        if not await context.ask("Change how long messages live?", text, "Change it"):
            return
    is_as_before = room.expiry == effective
    await conversation.lifetimes.change(group_id, expiry, dry_run=False)
    if is_as_before:  # otherwise a notice in the group says it
        context.say(f"Messages of {room.name} are {formatting.policy(effective)}, as before.{decided}")


def _hidden(would: GroupUpdated) -> str:
    number, since = (
        formatting.count(would.messages_expiring, "message"),
        formatting.date_and_time(would.oldest_expiring),
    )
    return f"{number}, the oldest of {since}, will be hidden at once, for everybody. Nothing brings them back."


def _deleted(would: GroupUpdated, keep: int | None) -> str:
    """Say what goes from the server with delete-after-fetch, and what stays on devices."""
    number, since = (
        formatting.count(would.messages_expiring, "message"),
        formatting.date_and_time(would.oldest_expiring),
    )
    kept = "until it is taken back" if keep is None else f"for {duration_words(keep)} after it came"
    return (
        f"{number}, the oldest of {since}, will go from the server at once, since all have fetched them: who comes in"
        f" later cannot read them. They stay on the devices that have them. In this chat what counts down goes on doing"
        f" so; the rest stays {kept}."
    )


async def send_burning(context: CommandContext, rest: str) -> None:
    """Send what goes after it was read, or have all that is sent in the group be so."""
    room = _room(context)
    time, text = [*rest.split(maxsplit=1), ""][:2]
    if rest == "off":
        context.conversation.burn(room, 0)
        context.say("What you send stays as long as the group's messages do")
        return
    try:
        seconds = formatting.parse_lifetime(time)
    except ValueError as error:
        raise CommandError(f"{error}: /burn 30s hello") from error
    if seconds > MAX_SELF_DESTRUCT_SECONDS:
        raise CommandError(f"that is too long, at most {duration_words(MAX_SELF_DESTRUCT_SECONDS)}: /burn 30s hello")
    if text:
        context.conversation.send_queue.send(room, text, seconds)
        return
    context.conversation.burn(room, seconds)
    context.say(f"What you send here goes {duration_words(seconds)} after each has read it, until /burn off")


async def _change_member(context: CommandContext, name: str, what: str) -> None:
    room, client = _room(context), context.conversation.client
    group_id = room.group.group_id
    user_id = context.conversation.rooms.member(room, name) or (await client.user(name)).user_id
    membership = context.conversation.sync.membership
    does = {
        "promote": lambda: client.promote(group_id, user_id),
        "demote": lambda: client.demote(group_id, user_id),
        "remove": lambda: membership.remove(group_id, user_id),
        "ban": lambda: membership.remove(group_id, user_id, ban=True),
        "unban": lambda: client.unban(group_id, user_id),
    }
    if what in ("remove", "ban"):
        more = "and can come back by an invite"
        if room.group.visibility == "public":
            more = "but can join again, since the group is public: /ban keeps out"
        more = "and cannot come back until /unban" if what == "ban" else more
        text = f"{formatting.called(name)} will not be a member of {room.name} any more, {more}."
        if not await context.ask(f"{what.capitalize()} {formatting.called(name)}?", text, what.capitalize()):
            return
    await does[what]()
    if what in ("ban", "unban"):
        context.say(
            f"{formatting.called(name)} is {'banned from' if what == 'ban' else 'not banned any more from'} {room.name}"
        )


def about_member(what: str) -> Work:
    """Return what does something about a member."""

    async def work(context: CommandContext, rest: str) -> None:
        await _change_member(context, rest, what)

    return work


async def rename_group(context: CommandContext, rest: str) -> None:
    """Give the group another name."""
    await context.conversation.client.update_group(_room(context).group.group_id, group_name=rest)


async def set_title(context: CommandContext, rest: str) -> None:
    """Set or clear the group's title."""
    await context.conversation.client.update_group(_room(context).group.group_id, alias=rest)


async def make_public(context: CommandContext, _: str) -> None:
    """Let everybody find and join the group, if the user is sure."""
    room = _room(context)
    text = f"Everybody at this server will be able to find {room.name} and to join it."
    if await context.ask("Open it to everybody?", text, "Open it"):
        await context.conversation.client.update_group(room.group.group_id, visibility="public")


async def make_private(context: CommandContext, _: str) -> None:
    """Let people in by invite only."""
    await context.conversation.client.update_group(_room(context).group.group_id, visibility="private")


async def set_alias(context: CommandContext, rest: str) -> None:
    """Set or clear how the user is called beside the name."""
    await context.conversation.client.set_alias(rest)
    context.say(f"Your alias is {formatting.harmless(rest)} now" if rest else "You have no alias any more")


async def send_again(context: CommandContext, _: str) -> None:
    """Send again what was refused."""
    if not context.conversation.send_queue.send_again(_room(context)):
        context.say("Nothing was refused here")


async def discard_refused(context: CommandContext, _: str) -> None:
    """Drop what was refused, or else what is not sent yet."""
    if not context.conversation.send_queue.discard(_room(context)):
        context.say("Everything here is sent")


async def leave_group(context: CommandContext, _: str) -> None:
    """Leave the group, if the user is sure."""
    room = _room(context)
    last = " You are its last member: it goes, with all its messages." if len(room.group.members) == 1 else ""
    text = f"What is here of {room.name} is erased, and you see nothing of it any more.{last}"
    if await context.ask(f"Leave {room.name}?", text, "Leave"):
        await context.conversation.leave(room.group.group_id)


async def delete_group(context: CommandContext, _: str) -> None:
    """Delete the group for all, if the user is sure."""
    room = _room(context)
    text = f"{room.name} and all its messages go, for all {formatting.count(len(room.group.members), 'member')}."
    if await context.ask(f"Delete {room.name}?", f"{text} Nothing brings them back.", "Delete"):
        await context.conversation.client.delete_group(room.group.group_id)


async def show_help(context: CommandContext, rest: str) -> None:
    """Show keys and commands, or one of these."""
    await context.help(rest)


async def show_info(context: CommandContext, _: str) -> None:
    """Show what there is to know of the group."""
    await context.info()


async def change_password(context: CommandContext, rest: str) -> None:
    """Have the password changed."""
    if rest:
        raise CommandError("a password is not typed into the line: /password alone asks for it")
    await context.change_password()


async def log_out(context: CommandContext, _: str) -> None:
    """End the session and forget everything here, if the user is sure."""
    text = "The session ends, and this machine forgets your messages and drafts. The server keeps what it has."
    if context.conversation.keys.encrypts:
        text += (
            " Your keys go too: when you log in again you have new ones, everybody is told so, and what others have"
            " sent meanwhile cannot be read."
        )
    if await context.ask("Log out?", text, "Log out"):
        await context.log_out()


async def leave_chat(context: CommandContext, _: str) -> None:
    """End the program."""
    await context.leave_chat()


def _room_of(context: CommandContext, name: str) -> Room:
    """Return one of the user's groups by its name; the open one for ""."""
    room = context.conversation.rooms.by_name(name) if name else _room(context)
    if room is None:
        raise CommandError(f"you are in no group {formatting.harmless(name)}; /groups lists yours")
    return room


def _room(context: CommandContext) -> Room:
    if context.room is None:
        raise CommandError("open a group first")
    return context.room
