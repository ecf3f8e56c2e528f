"""The handlers of most commands. They take a context and the arguments, and raise CommandError and ClientError."""

import re
from contextlib import suppress
from uuid import UUID

from conclave.client import names
from conclave.client.chat import formatting
from conclave.client.chat.command_context import CommandContext, CommandError, Handler
from conclave.client.chat.formatting import AFTER_FETCH
from conclave.client.chat.rooms import Room, find_by_name
from conclave.client.errors import ClientError, ResourceError
from conclave.errors import ErrorCode
from conclave.retention.durations import duration_words
from conclave.wire.fields import MAX_SELF_DESTRUCT_SECONDS
from conclave.wire.results import GroupUpdated, InviteInfo

MAX_TITLE = 64
"""In characters."""


async def create_group(context: CommandContext, rest: str) -> None:
    """Create a group, and open it.

    An argument that is not a valid name becomes the title, from which a name is derived.
    """
    words = rest.split()
    kind = words.pop() if len(words) > 1 and words[-1] in ("public", "private") else ""
    typed = " ".join(words)
    title = "" if re.fullmatch(r"[a-zA-Z0-9_]+", typed) else typed
    if len(title) > MAX_TITLE:
        raise CommandError(f"a title has at most {MAX_TITLE} characters; this one has {len(title)}")
    name = names.check_name("group_name", (title and names.name_from_title(title)) or typed)
    group_id = await _create(context, name, title, is_public=kind == "public")
    await context.conversation.refresh()
    context.open_group(group_id, is_requested=True)
    room = context.conversation.rooms.all.get(group_id)
    context.show_status(
        f"Created {room.label if room else formatting.display_name(name)}. Invite people with /invite NAME, set"
        " the expiry with /expire 1h"
    )


async def _create(
    context: CommandContext, name: str, title: str, *, is_public: bool, is_derived: bool | None = None
) -> UUID:
    """Create a group. A derived name that is taken gets a number."""
    create = context.conversation.sync.membership.create
    is_derived = bool(title) if is_derived is None else is_derived
    others = [f"{name[: names.MAX_LENGTH - 2]}_{number}" for number in range(2, 10)] if is_derived else []
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
        formatting.name_with_title(each.group.group_name, each.group.alias)
        + (f": {formatting.policy(each.expiry)}" if each.expiry is not None else "")
        + (f", {formatting.unread(each.unread)} unread" if each.unread else "")
        + (f", {formatting.unread(len(each.mentions))} mentions" if each.mentions else "")
        + (", muted" if each.is_muted(context.conversation.now()) else "")
        for each in rooms.ordered()
    ]
    lines += [
        f"invited to {formatting.name_with_title(each.group_name, each.group_alias)}"
        f" by {formatting.display_name(each.inviter_username)}"
        for each in rooms.invites
    ]
    await context.show_text("Your groups", "\n".join(lines) or "You have no groups yet.")


async def list_public_groups(context: CommandContext, rest: str) -> None:
    """List public groups."""
    found = await context.conversation.client.public_groups(rest)
    lines = [
        f"{formatting.display_name(each.group_name)}  {formatting.count(each.member_count, 'member')}"
        f"  {formatting.sanitize(each.alias)}"
        for each in found
    ]
    await context.show_text(
        "Public groups", "\n".join(lines) + "\n\nType /join NAME to join one." if lines else "No public groups found."
    )


async def join_group(context: CommandContext, rest: str) -> None:
    """Join a public group, and open it."""
    own = context.conversation.rooms.by_name(rest)
    if own and own.group.group_name == rest:
        context.open_group(own.group.group_id, is_requested=True)
        return
    found = await context.conversation.client.public_groups(rest)
    group = find_by_name(rest, found, lambda each: each.group_name)
    if group is None:
        raise CommandError(f"no public group {formatting.sanitize(rest)}; /find lists public groups")
    try:
        await context.conversation.sync.membership.join(group.group_id)
    finally:
        context.conversation.request_refresh()  # the answer may be lost, and there is no event
    await context.conversation.refresh()
    context.open_group(group.group_id, is_requested=True)


async def message_user(context: CommandContext, rest: str) -> None:
    """Open the group of the user and one other, create it if needed, and send a text there.

    A user who has not joined yet could not read the text; it stays in the input field.
    """
    username, _, text = rest.partition(" ")
    conversation = context.conversation
    user = await conversation.client.user(username)
    if user.user_id == conversation.user_id:
        raise CommandError("you cannot message yourself")
    both = {conversation.user_id, user.user_id}
    name = f"{conversation.client.session.username}_and_{user.username}"[: names.MAX_LENGTH]
    rooms = conversation.rooms.ordered()
    room = next((each for each in rooms if {it.user_id for it in each.group.members} == both), None)
    room = room or next((each for each in rooms if each.group.group_name == name), None)
    if room is None:
        group_id = await _create(context, name, "", is_public=False, is_derived=True)
        try:
            await conversation.sync.membership.invite(group_id, user.username)
        except ClientError:
            with suppress(ClientError):
                await conversation.client.delete_group(group_id)
            raise
        await conversation.refresh()
        room = conversation.rooms.all[group_id]
        context.show_status(f"Invited {formatting.display_name(user.username)} to {room.name}")
    is_there = any(each.user_id == user.user_id for each in room.group.members)
    text = text.strip()
    if text and not is_there:
        room.typed = text
        context.show_status(
            f"{formatting.display_name(user.username)} has not joined yet. Send the text once they have"
        )
    context.open_group(room.group.group_id, is_requested=True)
    if text and is_there:
        conversation.send_queue.send(room, text, room.self_destruct_seconds)
        context.go_to_end()


async def open_named_group(context: CommandContext, rest: str) -> None:
    """Open one of the user's groups."""
    context.open_group(_room_of(context, rest).group.group_id)


async def mark_read(context: CommandContext, rest: str) -> None:
    """Mark the group, or all groups, as read."""
    if rest not in ("", "all"):
        raise CommandError("usage: /read or /read all")
    conversation = context.conversation
    rooms = [*conversation.rooms.all.values()] if rest else [_room(context)]
    for room in rooms:
        conversation.mark_read(room)
    if left := sum(each.unread for each in rooms):
        context.show_status(f"{formatting.count(left, 'self-destructing message')} left unread")


async def mute_group(context: CommandContext, rest: str) -> None:
    """Mute a group, for a time or until it is unmuted."""
    name, _, last = rest.rpartition(" ")
    try:
        seconds: int | None = formatting.parse_lifetime(last)
    except ValueError:
        name, seconds = rest, None
    room = _room_of(context, name.strip())
    context.conversation.mute(room, seconds)
    how_long = "until /unmute" if seconds is None else f"for {duration_words(seconds)}"
    context.show_status(f"{room.name} is muted {how_long}")


async def unmute_group(context: CommandContext, rest: str) -> None:
    """Unmute a group."""
    room = _room_of(context, rest)
    context.conversation.mute(room, 0)
    context.show_status(f"{room.name} is no longer muted")


async def invite_user(context: CommandContext, rest: str) -> None:
    """Invite a user to the group."""
    room = _room(context)
    await context.conversation.sync.membership.invite(room.group.group_id, rest)
    context.show_status(f"Invited {formatting.display_name(rest)} to {room.name}")


async def withdraw_invite(context: CommandContext, rest: str) -> None:
    """Withdraw an invite to the group."""
    room = _room(context)
    user = await context.conversation.client.user(rest)
    await context.conversation.withdraw_invite(room.group.group_id, user.user_id)
    context.show_status(f"Withdrew the invite of {formatting.display_name(rest)} to {room.name}")


async def accept_invite(context: CommandContext, rest: str) -> None:
    """Accept an invite, and open its group."""
    invite = await _one_invite(context, rest)
    await context.conversation.answer_invite(invite.invite_id, accept=True)
    if invite.group_id in context.conversation.rooms.all:
        context.open_group(invite.group_id, is_requested=True)


async def decline_invite(context: CommandContext, rest: str) -> None:
    """Decline an invite."""
    await context.conversation.answer_invite((await _one_invite(context, rest)).invite_id, accept=False)


async def _one_invite(context: CommandContext, name: str) -> InviteInfo:
    """Return the invite to the named group, or the only invite. Raises CommandError."""
    found = _find_invite(context, name)
    if found is None:
        await context.conversation.refresh()  # the announcement of an invite precedes the refresh
        found = _find_invite(context, name)
    if found:
        return found
    names = formatting.join_names(
        [formatting.display_name(each.group_name) for each in context.conversation.rooms.invites]
    )
    raise CommandError(f"name the group: you are invited to {names}" if names else "you have no invites")


def _find_invite(context: CommandContext, name: str) -> InviteInfo | None:
    invites = context.conversation.rooms.invites
    if name:
        return find_by_name(name, invites, lambda each: each.group_name)
    return invites[0] if len(invites) == 1 else None


async def set_expiry(context: CommandContext, rest: str) -> None:
    """Set how long messages live. If that hides any, show how many and ask for confirmation first."""
    room, conversation = _room(context), context.conversation
    group_id = room.group.group_id
    try:
        expiry = formatting.parse_expiry(rest)
    except ValueError as error:
        raise CommandError(f"{error}, or fetched (delete after all have fetched), or off (server default)") from error
    would = await conversation.retention.change(group_id, expiry, dry_run=True)
    effective = await conversation.retention.effective(group_id, expiry)
    decided = ""
    if room.retention and room.retention.policy_source == "override":
        decided = " The operator has set the policy of this group: your setting is stored, but has no effect."
    if would.messages_expiring:
        what = _deleted(would, conversation.history.keep_after_fetch) if effective == AFTER_FETCH else _hidden(would)
        text = f"Messages in {room.name} will be {formatting.policy(effective)}.{decided}\n\n{what}"
        if not await context.confirm("Change expiry?", text, "Change"):
            return
    is_unchanged = room.expiry == effective
    await conversation.retention.change(group_id, expiry, dry_run=False)
    if is_unchanged:  # otherwise a notice appears in the group
        context.show_status(f"Messages in {room.name} are still {formatting.policy(effective)}.{decided}")


def _hidden(would: GroupUpdated) -> str:
    number, since = (
        formatting.count(would.messages_expiring, "message"),
        formatting.date_and_time(would.oldest_expiring),
    )
    return f"{number}, the oldest from {since}, will be hidden for everyone now. This cannot be undone."


def _deleted(would: GroupUpdated, keep: int | None) -> str:
    """Describe what delete-after-fetch deletes from the server, and what stays on devices."""
    number, since = (
        formatting.count(would.messages_expiring, "message"),
        formatting.date_and_time(would.oldest_expiring),
    )
    kept = "until they are taken back" if keep is None else f"for {duration_words(keep)} after they arrived"
    return (
        f"{number}, the oldest from {since}, will be deleted from the server now, since all members have fetched them."
        f" New members will not see them. Devices keep their copies. In this chat, countdowns continue; other messages"
        f" stay {kept}."
    )


async def send_self_destructing(context: CommandContext, rest: str) -> None:
    """Send a self-destructing message, or set the timer for all messages sent to the group."""
    room = _room(context)
    time, text = [*rest.split(maxsplit=1), ""][:2]
    if rest == "off":
        context.conversation.set_self_destruct(room, 0)
        context.show_status("Your messages no longer self-destruct")
        return
    try:
        seconds = formatting.parse_lifetime(time)
    except ValueError as error:
        raise CommandError(f"{error}: for example /burn 30s hello") from error
    if seconds > MAX_SELF_DESTRUCT_SECONDS:
        raise CommandError(
            f"the longest timer is {duration_words(MAX_SELF_DESTRUCT_SECONDS)}: for example /burn 30s hello"
        )
    if text:
        context.conversation.send_queue.send(room, text, seconds)
        return
    context.conversation.set_self_destruct(room, seconds)
    context.show_status(f"Your messages here self-destruct {duration_words(seconds)} after reading, until /burn off")


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
        more = "They can return by invite."
        if room.group.visibility == "public":
            more = "They can join again, since the group is public; use /ban to prevent that."
        more = "They cannot return until /unban." if what == "ban" else more
        text = f"{formatting.display_name(name)} will be removed from {room.name}. {more}"
        if not await context.confirm(f"{what.capitalize()} {formatting.display_name(name)}?", text, what.capitalize()):
            return
    await does[what]()
    if what in ("ban", "unban"):
        context.show_status(
            f"{'Banned' if what == 'ban' else 'Unbanned'} {formatting.display_name(name)} in {room.name}"
        )


def member_handler(what: str) -> Handler:
    """Return the handler of a command about a member."""

    async def work(context: CommandContext, rest: str) -> None:
        await _change_member(context, rest, what)

    return work


async def rename_group(context: CommandContext, rest: str) -> None:
    """Rename the group."""
    await context.conversation.client.update_group(_room(context).group.group_id, group_name=rest)


async def set_title(context: CommandContext, rest: str) -> None:
    """Set or clear the group's title."""
    await context.conversation.client.update_group(_room(context).group.group_id, alias=rest)


async def make_public(context: CommandContext, _: str) -> None:
    """Make the group public, after a confirmation."""
    room = _room(context)
    text = f"Everyone on this server will be able to find and join {room.name}."
    if await context.confirm("Make the group public?", text, "Make public"):
        await context.conversation.client.update_group(room.group.group_id, visibility="public")


async def make_private(context: CommandContext, _: str) -> None:
    """Make the group private: new members need an invite."""
    await context.conversation.client.update_group(_room(context).group.group_id, visibility="private")


async def set_alias(context: CommandContext, rest: str) -> None:
    """Set or clear the user's alias."""
    await context.conversation.client.set_alias(rest)
    context.show_status(f"Alias set to {formatting.sanitize(rest)}" if rest else "Alias removed")


async def send_again(context: CommandContext, _: str) -> None:
    """Retry the messages that were refused."""
    if not context.conversation.send_queue.send_again(_room(context)):
        context.show_status("There is nothing to retry here")


async def discard_refused(context: CommandContext, _: str) -> None:
    """Discard the messages that were refused, or else those that are not sent yet."""
    if not context.conversation.send_queue.discard(_room(context)):
        context.show_status("There is nothing to discard here")


async def leave_group(context: CommandContext, _: str) -> None:
    """Leave the group, after a confirmation."""
    room = _room(context)
    last = " You are the last member: the group will be deleted." if len(room.group.members) == 1 else ""
    text = f"Your local copy of {room.name} will be erased.{last}"
    if await context.confirm(f"Leave {room.name}?", text, "Leave"):
        await context.conversation.leave(room.group.group_id)


async def delete_group(context: CommandContext, _: str) -> None:
    """Delete the group for all members, after a confirmation."""
    room = _room(context)
    members = formatting.count(len(room.group.members), "member")
    text = f"{room.name} and all its messages will be deleted for {members}. This cannot be undone."
    if await context.confirm(f"Delete {room.name}?", text, "Delete"):
        await context.conversation.client.delete_group(room.group.group_id)


async def show_help(context: CommandContext, rest: str) -> None:
    """Show the help, or that of one command."""
    await context.help(rest)


async def show_info(context: CommandContext, _: str) -> None:
    """Show details of the group."""
    await context.info()


async def change_password(context: CommandContext, rest: str) -> None:
    """Ask for the passwords, and change them."""
    if rest:
        raise CommandError("do not type the password here: /password alone asks for it")
    await context.change_password()


async def log_out(context: CommandContext, _: str) -> None:
    """End the session and erase local data, after a confirmation."""
    text = "The session ends, and your messages and drafts are erased from this machine, but not from the server."
    if context.conversation.keys.encrypts:
        text += (
            " Your keys are erased too: after the next login you have new ones, other members are notified, and you"
            " cannot read what was sent in the meantime."
        )
    if await context.confirm("Log out?", text, "Log out"):
        await context.log_out()


async def leave_chat(context: CommandContext, _: str) -> None:
    """Quit the program."""
    await context.leave_chat()


def _room_of(context: CommandContext, name: str) -> Room:
    """Return the user's group with this name; the open group for ""."""
    room = context.conversation.rooms.by_name(name) if name else _room(context)
    if room is None:
        raise CommandError(f"you have no group {formatting.sanitize(name)}; /groups lists yours")
    return room


def _room(context: CommandContext) -> Room:
    if context.room is None:
        raise CommandError("open a group first")
    return context.room
