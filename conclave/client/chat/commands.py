"""What can be typed behind a slash: one table, from which the help and the completion are made too."""

from dataclasses import dataclass
from typing import Any, cast

from conclave.client.chat import command_handlers, finding, formatting, judging, taking_back
from conclave.client.chat.command_context import CommandContext, CommandError, Work
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


@dataclass(frozen=True)
class Command:
    """A command. ``takes``: what follows its name; in brackets what may be left out. ``says``: its line in the help.

    ``in_group``: it is about the open group. ``at_once``: it waits neither for the server nor for a dialog.
    ``opens``: once it is done, another group is open, and what is typed after it is for that one.
    """

    name: str
    takes: str
    says: str
    work: Work
    in_group: bool = True
    at_once: bool = False
    opens: bool = False

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.takes}".rstrip()


class _About:
    """A context at which another group than the one that is open by now is meant."""

    def __init__(self, context: CommandContext, room: Room | None) -> None:
        self._context = context
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def is_at_once(line: str) -> bool:
    """Tell whether a command waits for nothing, so that what is typed after it has to come after it."""
    command = find(line[1:].partition(" ")[0])
    return command is not None and command.at_once


def opens(line: str) -> bool:
    """Tell whether a line is a command that opens a group, for which the server is waited."""
    command = _of(line)
    return command is not None and command.opens


def stands_alone(line: str) -> bool:
    """Tell whether a line is a command that does the same whichever group is open, and opens none."""
    command = _of(line)
    return command is not None and not (command.in_group or command.at_once or command.opens)


def _of(line: str) -> Command | None:
    return find(line[1:].partition(" ")[0]) if is_command(line) else None


def is_command(line: str) -> bool:
    """Tell whether a line is a command. Two slashes begin a message with one."""
    return line.startswith("/") and not line.startswith("//")


async def run(context: CommandContext, line: str, room: Room | None) -> None:
    """Do what a line says that begins with a slash. Raises CommandError, and ClientError.

    ``room``: the group that was open when it was typed.
    """
    context = cast(CommandContext, _About(context, room))
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command is None:
        could = formatting.listed([f"/{each.name}" for each in matching(f"/{name}")] if name else [], last="or")
        wrong = f"could be {could}: type more of it" if could else "is no command; /help lists all of them"
        raise CommandError(f"/{formatting.harmless(name)} {wrong}")
    if command.in_group and context.room is None:
        raise CommandError(f"/{command.name} is about a group: open one first, or make one with /new NAME")
    if command.takes and not command.takes.startswith("[") and not rest.strip():
        raise CommandError(f"type it as {command.usage}")
    says_itself = command.work is command_handlers.change_password  # what is wrong with a password in the line
    if rest.strip() and not command.takes and not says_itself:
        raise CommandError(f"nothing follows {command.usage}")
    await command.work(context, rest.strip())


def find(name: str) -> Command | None:
    """Find a command by its name, by what it is called elsewhere, or by as much of its name as only one has."""
    name = ALIASES.get(name.lower(), name)
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


def quoted_by(line: str, conversation: Conversation, room: Room) -> str:
    """Return what a line would quote if it is sent; "" for what is no reply."""
    name, space, rest = line[1:].partition(" ")
    command = find(name) if space and is_command(line) else None
    return finding.preview(conversation, room, rest.strip()) if command and command.work is finding.reply else ""


def has_message(line: str) -> bool:
    """Tell whether a line has the text of a message in it, which nothing may bring back, or a password."""
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command and command.work is finding.reply:
        return bool(rest.strip())
    if command and command.work is command_handlers.send_burning:
        return " " in rest.strip()
    if command and command.work is taking_back.take_back_with:
        return bool(rest.strip())
    if command and command.work is command_handlers.write_to_user:
        return " " in rest.strip()
    return line.startswith("//") or (
        command is not None and command.work is command_handlers.change_password and bool(rest.strip())
    )


ALIASES = {"dm": "msg", "part": "leave", "kick": "remove", "names": "info", "nick": "alias", "exit": "quit"}
"""What other chats call commands, and how they are called here."""

COMMANDS = {
    each.name: each
    for each in (
        Command(
            "new",
            "NAME [public]",
            "make a group; a name with spaces is its title",
            command_handlers.make_group,
            in_group=False,
            opens=True,
        ),
        Command("groups", "", "list your groups and invites", command_handlers.list_groups, in_group=False),
        Command(
            "find",
            "[TEXT]",
            "list public groups, all or those with TEXT in their names",
            command_handlers.find_public,
            in_group=False,
        ),
        Command("join", "NAME", "join a public group", command_handlers.join_group, in_group=False, opens=True),
        Command(
            "msg",
            "USER [TEXT]",
            "open, or make, the group of you and USER",
            command_handlers.write_to_user,
            in_group=False,
            opens=True,
        ),
        Command("go", "NAME", "open one of your groups", command_handlers.go_to, in_group=False, at_once=True),
        Command(
            "read",
            "[all]",
            "count what is unread here, or in all groups, as read",
            command_handlers.put_aside,
            in_group=False,
            at_once=True,
        ),
        Command(
            "search",
            "TEXT | all TEXT",
            "find what was said here, or in all groups, and go there",
            finding.search,
            in_group=False,
        ),
        Command(
            "reply",
            "[@USER] TEXT",
            "answer the last message, USER's, or the one that you went to",
            finding.reply,
            at_once=True,
        ),
        Command(
            "mute",
            "[GROUP] [TIME]",
            "let a group not call, for a time or for good",
            command_handlers.mute_group,
            in_group=False,
            at_once=True,
        ),
        Command(
            "unmute",
            "[GROUP]",
            "let a group call again",
            command_handlers.unmute_group,
            in_group=False,
            at_once=True,
        ),
        Command("accept", "[GROUP]", "accept an invite", command_handlers.accept_invite, in_group=False, opens=True),
        Command("decline", "[GROUP]", "decline an invite", command_handlers.decline_invite, in_group=False),
        Command("invite", "USER", "invite somebody", command_handlers.invite_user),
        Command("uninvite", "USER", "withdraw an invite", command_handlers.withdraw_invite),
        Command(
            "expire",
            "TIME | fetched | off",
            "how long messages live: 1h, 2d; first shows what would go",
            command_handlers.set_expiry,
        ),
        Command(
            "burn",
            "TIME [TEXT] | off",
            "send what goes TIME after each has read it",
            command_handlers.send_burning,
            at_once=True,
        ),
        Command("undo", "", "take back your last message here, for everybody; or call it back", taking_back.undo),
        Command(
            "delete",
            "WORDS",
            "take back a message with WORDS: yours, or any as an admin",
            taking_back.take_back_with,
        ),
        Command("purge", "TIME", "take back what was sent in the last TIME, as an admin", taking_back.purge),
        Command("info", "", "who is in, what the policy is, who holds it back", command_handlers.show_info),
        Command("verify", "USER", "compare keys with a user, by a code", judging.verify_user, in_group=False),
        Command("promote", "USER", "make a member an admin", command_handlers.about_member("promote")),
        Command("demote", "USER", "make an admin a member", command_handlers.about_member("demote")),
        Command("remove", "USER", "remove a member", command_handlers.about_member("remove")),
        Command("ban", "USER", "remove somebody for good", command_handlers.about_member("ban")),
        Command("unban", "USER", "allow somebody back", command_handlers.about_member("unban")),
        Command("rename", "NAME", "give the group another name", command_handlers.rename_group),
        Command("title", "[TEXT]", "set or clear the group's title", command_handlers.set_title),
        Command("public", "", "let everybody find and join the group", command_handlers.make_public),
        Command("private", "", "let people in by invite only", command_handlers.make_private),
        Command("retry", "", "send again what was refused", command_handlers.send_again, at_once=True),
        Command(
            "discard",
            "",
            "drop what was refused, or else what still waits",
            command_handlers.discard_refused,
            at_once=True,
        ),
        Command("leave", "", "leave the group, and erase it here", command_handlers.leave_group),
        Command("disband", "", "delete the group for all", command_handlers.delete_group),
        Command(
            "alias",
            "[TEXT]",
            "set or clear how you are called beside your name",
            command_handlers.set_alias,
            in_group=False,
        ),
        Command(
            "reset", "", "make new keys: for a device that is lost, or was replaced", judging.reset_keys, in_group=False
        ),
        Command("password", "", "change your password", command_handlers.change_password, in_group=False),
        Command("logout", "", "end the session, and forget everything here", command_handlers.log_out, in_group=False),
        Command("help", "[COMMAND]", "keys and commands, or one of these", command_handlers.show_help, in_group=False),
        Command("quit", "", "leave the chat", command_handlers.leave_chat, in_group=False),
    )
}
"""All commands by their names, in the order in which the help lists them."""
