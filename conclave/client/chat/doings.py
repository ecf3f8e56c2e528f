"""What commands do. Each takes a desk, and what was typed after its name; it raises CommandError and ClientError."""

from conclave.client.chat import words
from conclave.client.chat.desk import CommandError, Desk, Work
from conclave.client.chat.rooms import Room, named
from conclave.client.results import GroupUpdated, Invite
from conclave.retention.durations import duration_words
from conclave.wire.fields import MOST_SELF_DESTRUCT_SECONDS


async def make_group(desk: Desk, rest: str) -> None:
    """Make a group, and open it."""
    name, _, kind = rest.partition(" ")
    if kind not in ("", "public", "private"):
        raise CommandError("type it as /new NAME, or /new NAME public")
    group_id = await desk.conversation.sync.membership.create(name, public=kind == "public")
    await desk.conversation.renew()
    desk.go(group_id, is_awaited=True)
    desk.say(f"{words.called(name)} is yours: bring people in with /invite NAME, and let it forget with /expire 1h")


async def list_groups(desk: Desk, _: str) -> None:
    """List the user's groups and invites."""
    rooms = desk.conversation.rooms
    lines = [
        each.name
        + (f": {words.policy(each.expiry)}" if each.expiry is not None else "")
        + (f", {words.unread(each.unread)} unread" if each.unread else "")
        for each in rooms.ordered()
    ]
    lines += [
        f"invited to {words.called(each.group_name)} by {words.called(each.inviter_username)}" for each in rooms.invites
    ]
    await desk.tell("Your groups", "\n".join(lines) or "There are none yet.")


async def find_public(desk: Desk, rest: str) -> None:
    """List public groups."""
    found = await desk.conversation.client.public_groups(rest)
    lines = [
        f"{words.called(each.group_name)}  {words.count(each.member_count, 'member')}  {words.harmless(each.alias)}"
        for each in found
    ]
    await desk.tell("Public groups", "\n".join(lines) + "\n\n/join NAME takes you in" if lines else "There are none.")


async def join_group(desk: Desk, rest: str) -> None:
    """Join a public group, and open it."""
    own = desk.conversation.rooms.by_name(rest)
    if own and own.group.group_name == rest:
        desk.go(own.group.group_id, is_awaited=True)
        return
    found = await desk.conversation.client.public_groups(rest)
    group = named(rest, found, lambda each: each.group_name)
    if group is None:
        raise CommandError(f"there is no public group {words.harmless(rest)}; /find lists those that there are")
    await desk.conversation.sync.membership.join(group.group_id)
    await desk.conversation.renew()
    desk.go(group.group_id, is_awaited=True)


async def go_to(desk: Desk, rest: str) -> None:
    """Open one of the user's groups."""
    room = desk.conversation.rooms.by_name(rest)
    if room is None:
        raise CommandError(f"you are in no group {words.harmless(rest)}; /groups lists yours")
    desk.go(room.group.group_id)


async def invite_user(desk: Desk, rest: str) -> None:
    """Invite somebody to the group."""
    room = _room(desk)
    await desk.conversation.sync.membership.invite(room.group.group_id, rest)
    desk.say(f"{words.called(rest)} is invited to {room.name}")


async def withdraw_invite(desk: Desk, rest: str) -> None:
    """Withdraw an invite to the group."""
    room = _room(desk)
    user = await desk.conversation.client.user(rest)
    await desk.conversation.client.cancel_invite(room.group.group_id, user.user_id)
    desk.say(f"{words.called(rest)} is not invited to {room.name} any more")


async def accept_invite(desk: Desk, rest: str) -> None:
    """Accept an invite, and open its group."""
    invite = _one_invite(desk, rest)
    await desk.conversation.answer(invite.invite_id, accept=True)
    if invite.group_id in desk.conversation.rooms.all:
        desk.go(invite.group_id, is_awaited=True)


async def decline_invite(desk: Desk, rest: str) -> None:
    """Decline an invite."""
    await desk.conversation.answer(_one_invite(desk, rest).invite_id, accept=False)


def _one_invite(desk: Desk, name: str) -> Invite:
    invites = desk.conversation.rooms.invites
    found = named(name, invites, lambda each: each.group_name) if name else invites[0] if len(invites) == 1 else None
    if found:
        return found
    names = words.listed([words.called(each.group_name) for each in invites])
    raise CommandError(f"name one of the groups that you are invited to: {names}" if names else "you have no invites")


async def set_expiry(desk: Desk, rest: str) -> None:
    """Set how long messages live; if that hides something, once the user has seen what."""
    room, conversation = _room(desk), desk.conversation
    group_id = room.group.group_id
    try:
        expiry = words.parse_expiry(rest)
    except ValueError as error:
        raise CommandError(f"{error}; or fetched: until all have fetched it; or off: as the server has it") from error
    would = await conversation.change_expiry(group_id, expiry, dry_run=True)
    effective = await conversation.effective(group_id, expiry)
    decided = ""
    if room.retention and room.retention.policy_source == "override":
        decided = " The operator has decided that for this group: what you set is stored, and has no effect."
    if would.messages_expiring:
        text = f"From now on messages of {room.name} are {words.policy(effective)}.{decided}\n\n{_hidden(would)}"
        if not await desk.ask("Change how long messages live?", text, "Change it"):
            return
    is_as_before = room.expiry == effective
    await conversation.change_expiry(group_id, expiry, dry_run=False)
    if is_as_before:  # otherwise a notice in the group says it
        desk.say(f"Messages of {room.name} are {words.policy(effective)}, as before.{decided}")


def _hidden(would: GroupUpdated) -> str:
    number, since = words.count(would.messages_expiring, "message"), words.date_and_time(would.oldest_expiring)
    return f"{number}, the oldest of {since}, will be hidden at once, for everybody. Nothing brings them back."


async def send_burning(desk: Desk, rest: str) -> None:
    """Send what goes after it was read, or have all that is sent in the group be so."""
    room = _room(desk)
    time, text = [*rest.split(maxsplit=1), ""][:2]
    if rest == "off":
        desk.conversation.burn(room, 0)
        desk.say("What you send stays as long as the group's messages do")
        return
    try:
        seconds = words.parse_lifetime(time)
    except ValueError as error:
        raise CommandError(f"{error}: /burn 30s hello") from error
    if seconds > MOST_SELF_DESTRUCT_SECONDS:
        raise CommandError(f"that is too long, at most {duration_words(MOST_SELF_DESTRUCT_SECONDS)}: /burn 30s hello")
    if text:
        desk.conversation.outbox.send(room, text, seconds)
        return
    desk.conversation.burn(room, seconds)
    desk.say(f"What you send here goes {duration_words(seconds)} after each has read it, until /burn off")


async def _change_member(desk: Desk, name: str, what: str) -> None:
    room, client = _room(desk), desk.conversation.client
    group_id = room.group.group_id
    user_id = desk.conversation.rooms.member(room, name) or (await client.user(name)).user_id
    membership = desk.conversation.sync.membership
    does = {
        "promote": lambda: client.promote(group_id, user_id),
        "demote": lambda: client.demote(group_id, user_id),
        "remove": lambda: membership.remove(group_id, user_id),
        "ban": lambda: membership.remove(group_id, user_id, ban=True),
        "unban": lambda: client.unban(group_id, user_id),
    }
    if what in ("remove", "ban"):
        more = "and cannot come back until /unban" if what == "ban" else "and can come back by an invite"
        text = f"{words.called(name)} will not be a member of {room.name} any more, {more}."
        if not await desk.ask(f"{what.capitalize()} {words.called(name)}?", text, what.capitalize()):
            return
    await does[what]()
    if what in ("ban", "unban"):
        desk.say(
            f"{words.called(name)} is {'banned from' if what == 'ban' else 'not banned any more from'} {room.name}"
        )


def about_member(what: str) -> Work:
    """Return what does something about a member."""

    async def work(desk: Desk, rest: str) -> None:
        await _change_member(desk, rest, what)

    return work


async def rename_group(desk: Desk, rest: str) -> None:
    """Give the group another name."""
    await desk.conversation.client.update_group(_room(desk).group.group_id, group_name=rest)


async def set_title(desk: Desk, rest: str) -> None:
    """Set or clear the group's title."""
    await desk.conversation.client.update_group(_room(desk).group.group_id, alias=rest)


async def make_public(desk: Desk, _: str) -> None:
    """Let everybody find and join the group, if the user is sure."""
    room = _room(desk)
    text = f"Everybody at this server will be able to find {room.name} and to join it."
    if await desk.ask("Open it to everybody?", text, "Open it"):
        await desk.conversation.client.update_group(room.group.group_id, visibility="public")


async def make_private(desk: Desk, _: str) -> None:
    """Let people in by invite only."""
    await desk.conversation.client.update_group(_room(desk).group.group_id, visibility="private")


async def set_alias(desk: Desk, rest: str) -> None:
    """Set or clear how the user is called beside the name."""
    await desk.conversation.client.set_alias(rest)
    desk.say(f"Your alias is {words.harmless(rest)} now" if rest else "You have no alias any more")


async def send_again(desk: Desk, _: str) -> None:
    """Send again what was refused."""
    if not desk.conversation.outbox.send_again(_room(desk)):
        desk.say("Nothing was refused here")


async def discard_refused(desk: Desk, _: str) -> None:
    """Drop what was refused."""
    if not desk.conversation.outbox.discard(_room(desk)):
        desk.say("Nothing was refused here")


async def leave_group(desk: Desk, _: str) -> None:
    """Leave the group, if the user is sure."""
    room = _room(desk)
    last = " You are its last member: it goes, with all its messages." if len(room.group.members) == 1 else ""
    text = f"What is here of {room.name} is erased, and you see nothing of it any more.{last}"
    if await desk.ask(f"Leave {room.name}?", text, "Leave"):
        await desk.conversation.leave(room.group.group_id)


async def delete_group(desk: Desk, _: str) -> None:
    """Delete the group for all, if the user is sure."""
    room = _room(desk)
    text = f"{room.name} and all its messages go, for all {words.count(len(room.group.members), 'member')}."
    if await desk.ask(f"Delete {room.name}?", f"{text} Nothing brings them back.", "Delete"):
        await desk.conversation.client.delete_group(room.group.group_id)


async def show_help(desk: Desk, _: str) -> None:
    """Show keys and commands."""
    await desk.help()


async def show_info(desk: Desk, _: str) -> None:
    """Show what there is to know of the group."""
    await desk.info()


async def change_password(desk: Desk, rest: str) -> None:
    """Have the password changed."""
    if rest:
        raise CommandError("a password is not typed into the line: /password alone asks for it")
    await desk.change_password()


async def log_out(desk: Desk, _: str) -> None:
    """End the session and forget everything here, if the user is sure."""
    text = "The session ends, and this machine forgets your messages and drafts. The server keeps what it has."
    if await desk.ask("Log out?", text, "Log out"):
        await desk.log_out()


async def leave_chat(desk: Desk, _: str) -> None:
    """End the program."""
    await desk.leave_chat()


def _room(desk: Desk) -> Room:
    if desk.room is None:
        raise CommandError("open a group first")
    return desk.room
