"""What can be typed behind a slash: one table, from which the help and the completion are made too."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast
from uuid import UUID

from conclave.client.chat import words
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room, named
from conclave.client.results import GroupUpdated, Invite
from conclave.retention.durations import duration_words
from conclave.wire.fields import MOST_SELF_DESTRUCT_SECONDS


class CommandError(Exception):
    """What was typed cannot be done; the text says why, in a line."""


class Desk(Protocol):
    """What commands work with: the conversation, the open group, and ways of asking and telling the user."""

    @property
    def conversation(self) -> Conversation:
        """What goes on with the server."""
        ...

    @property
    def room(self) -> Room | None:
        """The open group."""
        ...

    async def ask(self, title: str, text: str, yes: str) -> bool:
        """Ask for a decision; ``yes``: what the button says that does it."""
        ...

    async def tell(self, title: str, text: str) -> None:
        """Show a text until it is put away."""
        ...

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Say something in passing."""
        ...

    def go(self, group_id: UUID) -> None:
        """Open a group."""
        ...

    async def help(self) -> None:
        """Show the help."""
        ...

    async def info(self) -> None:
        """Show what there is to know of the open group."""
        ...

    async def change_password(self) -> None:
        """Ask for the passwords, and change them."""
        ...

    async def log_out(self) -> None:
        """End the session, and forget what is here."""
        ...

    async def leave_chat(self) -> None:
        """End the program."""
        ...


Work = Callable[[Desk, str], Awaitable[None]]


@dataclass(frozen=True)
class Command:
    """A command. ``takes``: what follows its name; in brackets what may be left out. ``says``: its line in the help.

    ``in_group``: it is about the open group. ``at_once``: it waits neither for the server nor for a dialog.
    """

    name: str
    takes: str
    says: str
    work: Work
    in_group: bool = True
    at_once: bool = False

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.takes}".rstrip()


class _About:
    """A desk at which another group than the one that is open by now is meant."""

    def __init__(self, desk: Desk, room: Room | None) -> None:
        self._desk = desk
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)


def is_at_once(line: str) -> bool:
    """Tell whether a command waits for nothing, so that what is typed after it has to come after it."""
    command = find(line[1:].partition(" ")[0])
    return command is not None and command.at_once


async def run(desk: Desk, line: str, room: Room | None) -> None:
    """Do what a line says that begins with a slash. Raises CommandError, and ClientError.

    ``room``: the group that was open when it was typed.
    """
    desk = cast(Desk, _About(desk, room))
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command is None:
        could = words.listed([f"/{each.name}" for each in matching(f"/{name}")] if name else [], last="or")
        wrong = f"could be {could}: type more of it" if could else "is no command; /help lists all of them"
        raise CommandError(f"/{words.harmless(name)} {wrong}")
    if command.in_group and desk.room is None:
        raise CommandError(f"/{command.name} is about a group: open one first, or make one with /new NAME")
    if command.takes and not command.takes.startswith("[") and not rest.strip():
        raise CommandError(f"type it as {command.usage}")
    if rest.strip() and not command.takes and command.work is not _password:  # which says itself what is wrong
        raise CommandError(f"nothing follows {command.usage}")
    await command.work(desk, rest.strip())


def find(name: str) -> Command | None:
    """Find a command by its name, or by as much of it as only one has."""
    if name in COMMANDS:
        return COMMANDS[name]
    found = [each for each in COMMANDS.values() if name and each.name.startswith(name.lower())]
    return found[0] if len(found) == 1 else None


def matching(line: str) -> list[Command]:
    """Return the commands that a line could become."""
    name, space, _ = line[1:].partition(" ")
    if space:
        command = find(name)
        return [command] if command else []
    return [each for each in COMMANDS.values() if each.name.startswith(name.lower())]


def has_message(line: str) -> bool:
    """Tell whether a line has the text of a message in it, which nothing may bring back, or a password."""
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command and command.work is _burn:
        return " " in rest.strip()
    return line.startswith("//") or (command is not None and command.work is _password and bool(rest.strip()))


async def _new(desk: Desk, rest: str) -> None:
    name, _, kind = rest.partition(" ")
    if kind not in ("", "public", "private"):
        raise CommandError("type it as /new NAME, or /new NAME public")
    group_id = await desk.conversation.sync.membership.create(name, public=kind == "public")
    await desk.conversation.renew()
    desk.go(group_id)
    desk.say(f"{name} is yours: bring people in with /invite NAME, and let it forget with /expire 1h")


async def _groups(desk: Desk, _: str) -> None:
    rooms = desk.conversation.rooms
    lines = [
        each.name
        + (f": {words.policy(each.expiry)}" if each.expiry is not None else "")
        + (f", {each.unread:,} unread" if each.unread else "")
        for each in rooms.ordered()
    ]
    lines += [
        f"invited to {words.harmless(each.group_name)} by {words.harmless(each.inviter_username)}"
        for each in rooms.invites
    ]
    await desk.tell("Your groups", "\n".join(lines) or "There are none yet.")


async def _find(desk: Desk, rest: str) -> None:
    found = await desk.conversation.client.public_groups(rest)
    lines = [
        f"{words.harmless(each.group_name)}  {words.count(each.member_count, 'member')}  {words.harmless(each.alias)}"
        for each in found
    ]
    await desk.tell("Public groups", "\n".join(lines) + "\n\n/join NAME takes you in" if lines else "There are none.")


async def _join(desk: Desk, rest: str) -> None:
    own = desk.conversation.rooms.by_name(rest)
    if own and own.group.group_name == rest:
        desk.go(own.group.group_id)
        return
    found = await desk.conversation.client.public_groups(rest)
    group = named(rest, found, lambda each: each.group_name)
    if group is None:
        raise CommandError(f"there is no public group {words.harmless(rest)}; /find lists those that there are")
    await desk.conversation.sync.membership.join(group.group_id)
    await desk.conversation.renew()
    desk.go(group.group_id)


async def _go(desk: Desk, rest: str) -> None:
    room = desk.conversation.rooms.by_name(rest)
    if room is None:
        raise CommandError(f"you are in no group {words.harmless(rest)}")
    desk.go(room.group.group_id)


async def _invite(desk: Desk, rest: str) -> None:
    room = _room(desk)
    await desk.conversation.sync.membership.invite(room.group.group_id, rest)
    desk.say(f"{words.harmless(rest)} is invited to {room.name}")


async def _uninvite(desk: Desk, rest: str) -> None:
    room = _room(desk)
    user = await desk.conversation.client.user(rest)
    await desk.conversation.client.cancel_invite(room.group.group_id, user.user_id)
    desk.say(f"{words.harmless(rest)} is not invited to {room.name} any more")


async def _accept(desk: Desk, rest: str) -> None:
    invite = _one_invite(desk, rest)
    await desk.conversation.answer(invite.invite_id, accept=True)
    if invite.group_id in desk.conversation.rooms.all:
        desk.go(invite.group_id)


async def _decline(desk: Desk, rest: str) -> None:
    await desk.conversation.answer(_one_invite(desk, rest).invite_id, accept=False)


def _one_invite(desk: Desk, name: str) -> Invite:
    invites = desk.conversation.rooms.invites
    found = named(name, invites, lambda each: each.group_name) if name else invites[0] if len(invites) == 1 else None
    if found:
        return found
    names = words.listed([words.harmless(each.group_name) for each in invites])
    raise CommandError(f"name one of the groups that you are invited to: {names}" if names else "you have no invites")


async def _expire(desk: Desk, rest: str) -> None:
    room, conversation = _room(desk), desk.conversation
    group_id = room.group.group_id
    try:
        expiry = words.parse_expiry(rest)
    except ValueError as error:
        raise CommandError(f"{error}; or fetched: until all have fetched it; or off: as the server has it") from error
    would = await conversation.change_expiry(group_id, expiry, dry_run=True)
    becomes = words.policy(await conversation.effective(group_id, expiry))
    decided = ""
    if room.retention and room.retention.policy_source == "override":
        decided = " The operator has decided that for this group: what you set is stored, and has no effect."
    text = f"From now on messages of {room.name} are {becomes}.{decided}\n\n{_hidden(would)}"
    if await desk.ask("Change how long messages live?", text, "Change it"):
        await conversation.change_expiry(group_id, expiry, dry_run=False)


def _hidden(would: GroupUpdated) -> str:
    if not would.messages_expiring:
        return "No message goes at once."
    number, since = words.count(would.messages_expiring, "message"), words.date_and_time(would.oldest_expiring)
    return f"{number}, the oldest of {since}, will be hidden at once, for everybody. Nothing brings them back."


async def _burn(desk: Desk, rest: str) -> None:
    room = _room(desk)
    time, text = [*rest.split(maxsplit=1), ""][:2]
    if rest == "off":
        room.self_destruct_seconds = 0
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
    room.self_destruct_seconds = seconds
    desk.say(f"What you send here goes {duration_words(seconds)} after each has read it, until /burn off")


async def _about_member(desk: Desk, name: str, what: str) -> None:
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
        text = f"{words.harmless(name)} will not be a member of {room.name} any more, {more}."
        if not await desk.ask(f"{what.capitalize()} {words.harmless(name)}?", text, what.capitalize()):
            return
    await does[what]()
    if what in ("ban", "unban"):
        desk.say(
            f"{words.harmless(name)} is {'banned from' if what == 'ban' else 'not banned any more from'} {room.name}"
        )


def _member_command(what: str) -> Work:
    async def work(desk: Desk, rest: str) -> None:
        await _about_member(desk, rest, what)

    return work


async def _rename(desk: Desk, rest: str) -> None:
    await desk.conversation.client.update_group(_room(desk).group.group_id, group_name=rest)


async def _title(desk: Desk, rest: str) -> None:
    await desk.conversation.client.update_group(_room(desk).group.group_id, alias=rest)


async def _public(desk: Desk, _: str) -> None:
    room = _room(desk)
    text = f"Everybody at this server will be able to find {room.name} and to join it."
    if await desk.ask("Open it to everybody?", text, "Open it"):
        await desk.conversation.client.update_group(room.group.group_id, visibility="public")


async def _private(desk: Desk, _: str) -> None:
    await desk.conversation.client.update_group(_room(desk).group.group_id, visibility="private")


async def _alias(desk: Desk, rest: str) -> None:
    await desk.conversation.client.set_alias(rest)
    desk.say(f"Your alias is {words.harmless(rest)} now" if rest else "You have no alias any more")


async def _retry(desk: Desk, _: str) -> None:
    if not desk.conversation.outbox.send_again(_room(desk)):
        desk.say("Nothing was refused here")


async def _discard(desk: Desk, _: str) -> None:
    if not desk.conversation.outbox.discard(_room(desk)):
        desk.say("Nothing was refused here")


async def _leave(desk: Desk, _: str) -> None:
    room = _room(desk)
    last = " You are its last member: it goes, with all its messages." if len(room.group.members) == 1 else ""
    text = f"What is here of {room.name} is erased, and you see nothing of it any more.{last}"
    if await desk.ask(f"Leave {room.name}?", text, "Leave"):
        await desk.conversation.leave(room.group.group_id)


async def _delete(desk: Desk, _: str) -> None:
    room = _room(desk)
    text = f"{room.name} and all its messages go, for all {words.count(len(room.group.members), 'member')}."
    if await desk.ask(f"Delete {room.name}?", f"{text} Nothing brings them back.", "Delete"):
        await desk.conversation.client.delete_group(room.group.group_id)


async def _help(desk: Desk, _: str) -> None:
    await desk.help()


async def _info(desk: Desk, _: str) -> None:
    await desk.info()


async def _password(desk: Desk, rest: str) -> None:
    if rest:
        raise CommandError("a password is not typed into the line: /password alone asks for it")
    await desk.change_password()


async def _logout(desk: Desk, _: str) -> None:
    text = "The session ends, and this machine forgets your messages and drafts. The server keeps what it has."
    if await desk.ask("Log out?", text, "Log out"):
        await desk.log_out()


async def _quit(desk: Desk, _: str) -> None:
    await desk.leave_chat()


def _room(desk: Desk) -> Room:
    if desk.room is None:
        raise CommandError("open a group first")
    return desk.room


COMMANDS = {
    each.name: each
    for each in (
        Command("new", "NAME [public]", "make a group", _new, in_group=False),
        Command("groups", "", "list your groups and invites", _groups, in_group=False),
        Command("find", "[TEXT]", "list public groups, all or those with TEXT in their names", _find, in_group=False),
        Command("join", "NAME", "join a public group", _join, in_group=False),
        Command("go", "NAME", "open one of your groups", _go, in_group=False, at_once=True),
        Command("accept", "[GROUP]", "accept an invite", _accept, in_group=False),
        Command("decline", "[GROUP]", "decline an invite", _decline, in_group=False),
        Command("invite", "USER", "invite somebody", _invite),
        Command("uninvite", "USER", "withdraw an invite", _uninvite),
        Command("expire", "TIME | fetched | off", "how long messages live: 1h, 2d; first shows what would go", _expire),
        Command("burn", "TIME [TEXT] | off", "send what goes TIME after each has read it", _burn, at_once=True),
        Command("info", "", "who is in, what the policy is, who holds it back", _info),
        Command("promote", "USER", "make a member an admin", _member_command("promote")),
        Command("demote", "USER", "make an admin a member", _member_command("demote")),
        Command("remove", "USER", "remove a member", _member_command("remove")),
        Command("ban", "USER", "remove somebody for good", _member_command("ban")),
        Command("unban", "USER", "allow somebody back", _member_command("unban")),
        Command("rename", "NAME", "give the group another name", _rename),
        Command("title", "[TEXT]", "set or clear the group's title", _title),
        Command("public", "", "let everybody find and join the group", _public),
        Command("private", "", "let people in by invite only", _private),
        Command("retry", "", "send again what was refused", _retry, at_once=True),
        Command("discard", "", "drop what was refused", _discard, at_once=True),
        Command("leave", "", "leave the group, and erase it here", _leave),
        Command("delete", "", "delete the group for all", _delete),
        Command("alias", "[TEXT]", "set or clear how you are called beside your name", _alias, in_group=False),
        Command("password", "", "change your password", _password, in_group=False),
        Command("logout", "", "end the session, and forget everything here", _logout, in_group=False),
        Command("help", "", "keys and commands", _help, in_group=False),
        Command("quit", "", "leave the chat", _quit, in_group=False),
    )
}
"""All commands by their names, in the order in which the help lists them."""
