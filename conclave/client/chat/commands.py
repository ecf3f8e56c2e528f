"""The table of commands, from which help and completion are generated."""

from dataclasses import dataclass
from typing import Any, cast

from conclave.client.chat import command_handlers, formatting, key_handlers, search_handlers, take_back_handlers
from conclave.client.chat.command_context import CommandContext, CommandError, Handler
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


@dataclass(frozen=True)
class Command:
    """A command. ``arguments``: their syntax, optional ones in brackets. ``description``: its line in the help.

    ``needs_group``: it works on the open group. ``is_immediate``: it waits neither for the server nor for a dialog.
    ``opens_group``: it opens another group, to which lines typed afterwards belong.
    """

    name: str
    arguments: str
    description: str
    handler: Handler
    needs_group: bool = True
    is_immediate: bool = False
    opens_group: bool = False

    @property
    def usage(self) -> str:
        """The command's syntax."""
        return f"/{self.name} {self.arguments}".rstrip()


class _RoomContext:
    """A context with a given room in place of the open one."""

    def __init__(self, context: CommandContext, room: Room | None) -> None:
        self._context = context
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def is_immediate(line: str) -> bool:
    """Tell whether a line is a command that waits for nothing, and must be executed before later lines."""
    command = find(line[1:].partition(" ")[0])
    return command is not None and command.is_immediate


def opens_group(line: str) -> bool:
    """Tell whether a line is a command that opens a group after the server has answered."""
    command = _command_of(line)
    return command is not None and command.opens_group


def is_independent(line: str) -> bool:
    """Tell whether a line is a command that does not depend on the open group, and opens none."""
    command = _command_of(line)
    return command is not None and not (command.needs_group or command.is_immediate or command.opens_group)


def _command_of(line: str) -> Command | None:
    return find(line[1:].partition(" ")[0]) if is_command(line) else None


def is_command(line: str) -> bool:
    """Tell whether a line is a command. Two slashes start a message with one."""
    return line.startswith("/") and not line.startswith("//")


async def run(context: CommandContext, line: str, room: Room | None) -> None:
    """Execute a line that starts with a slash. Raises CommandError and ClientError.

    ``room``: the group that was open when the line was typed.
    """
    context = cast(CommandContext, _RoomContext(context, room))
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command is None:
        could = formatting.join_names([f"/{each.name}" for each in matching(f"/{name}")] if name else [], last="or")
        wrong = f"is ambiguous: {could}" if could else "is not a command; /help lists all commands"
        raise CommandError(f"/{formatting.sanitize(name)} {wrong}")
    if command.needs_group and context.room is None:
        raise CommandError(f"/{command.name} needs a group: open one first, or create one with /new NAME")
    if command.arguments and not command.arguments.startswith("[") and not rest.strip():
        raise CommandError(f"usage: {command.usage}")
    has_own_error = command.handler is command_handlers.change_password
    if rest.strip() and not command.arguments and not has_own_error:
        raise CommandError(f"{command.usage} takes no arguments")
    await command.handler(context, rest.strip())


def find(name: str) -> Command | None:
    """Find a command by its name, an alias, or an unambiguous beginning of its name."""
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
    """Return the quote that a line would send as a reply; "" for other lines."""
    name, space, rest = line[1:].partition(" ")
    command = find(name) if space and is_command(line) else None
    return (
        search_handlers.preview(conversation, room, rest.strip())
        if command and command.handler is search_handlers.reply
        else ""
    )


def has_message(line: str) -> bool:
    """Tell whether a line contains a message or a password, and must not be recalled."""
    name, _, rest = line[1:].partition(" ")
    command = find(name)
    if command and command.handler is search_handlers.reply:
        return bool(rest.strip())
    if command and command.handler is command_handlers.send_self_destructing:
        return " " in rest.strip()
    if command and command.handler is take_back_handlers.take_back_matching:
        return bool(rest.strip())
    if command and command.handler is command_handlers.message_user:
        return " " in rest.strip()
    return line.startswith("//") or (
        command is not None and command.handler is command_handlers.change_password and bool(rest.strip())
    )


ALIASES = {"dm": "msg", "part": "leave", "kick": "remove", "names": "info", "nick": "alias", "exit": "quit"}
"""Common names in other chat programs, and the commands here."""

COMMANDS = {
    each.name: each
    for each in (
        Command(
            "new",
            "NAME [public]",
            "create a group; a name with spaces becomes its title",
            command_handlers.create_group,
            needs_group=False,
            opens_group=True,
        ),
        Command("groups", "", "list your groups and invites", command_handlers.list_groups, needs_group=False),
        Command(
            "find",
            "[TEXT]",
            "list public groups, optionally those with TEXT in their names",
            command_handlers.list_public_groups,
            needs_group=False,
        ),
        Command(
            "join", "NAME", "join a public group", command_handlers.join_group, needs_group=False, opens_group=True
        ),
        Command(
            "msg",
            "USER [TEXT]",
            "open the group of you and USER; create it if needed",
            command_handlers.message_user,
            needs_group=False,
            opens_group=True,
        ),
        Command(
            "go",
            "NAME",
            "open one of your groups",
            command_handlers.open_named_group,
            needs_group=False,
            is_immediate=True,
        ),
        Command(
            "read",
            "[all]",
            "mark this group, or all groups, as read",
            command_handlers.mark_read,
            needs_group=False,
            is_immediate=True,
        ),
        Command(
            "search",
            "TEXT | all TEXT",
            "search messages in this group, or in all groups",
            search_handlers.search,
            needs_group=False,
        ),
        Command(
            "reply",
            "[@USER] TEXT",
            "reply to the last message, USER's last one, or the search result you opened",
            search_handlers.reply,
            is_immediate=True,
        ),
        Command(
            "mute",
            "[GROUP] [TIME]",
            "mute a group, for a time or until /unmute",
            command_handlers.mute_group,
            needs_group=False,
            is_immediate=True,
        ),
        Command(
            "unmute",
            "[GROUP]",
            "unmute a group",
            command_handlers.unmute_group,
            needs_group=False,
            is_immediate=True,
        ),
        Command(
            "accept", "[GROUP]", "accept an invite", command_handlers.accept_invite, needs_group=False, opens_group=True
        ),
        Command("decline", "[GROUP]", "decline an invite", command_handlers.decline_invite, needs_group=False),
        Command("invite", "USER", "invite a user", command_handlers.invite_user),
        Command("uninvite", "USER", "withdraw an invite", command_handlers.withdraw_invite),
        Command(
            "expire",
            "TIME | fetched | off",
            "set how long messages live: 1h, 2d; shows first what would expire",
            command_handlers.set_expiry,
        ),
        Command(
            "burn",
            "TIME [TEXT] | off",
            "send a message that self-destructs TIME after reading",
            command_handlers.send_self_destructing,
            is_immediate=True,
        ),
        Command("undo", "", "take back your last message here", take_back_handlers.undo),
        Command(
            "delete",
            "WORDS",
            "take back your last message with WORDS; admins also others'",
            take_back_handlers.take_back_matching,
        ),
        Command("purge", "TIME", "take back all messages of the last TIME (admins)", take_back_handlers.purge),
        Command("info", "", "show members, policy, and who has not fetched yet", command_handlers.show_info),
        Command("verify", "USER", "compare keys with a user", key_handlers.verify_user, needs_group=False),
        Command("promote", "USER", "make a member an admin", command_handlers.member_handler("promote")),
        Command("demote", "USER", "make an admin an ordinary member", command_handlers.member_handler("demote")),
        Command("remove", "USER", "remove a member", command_handlers.member_handler("remove")),
        Command("ban", "USER", "remove a user and prevent their return", command_handlers.member_handler("ban")),
        Command("unban", "USER", "lift a ban", command_handlers.member_handler("unban")),
        Command("rename", "NAME", "rename the group", command_handlers.rename_group),
        Command("title", "[TEXT]", "set or clear the group's title", command_handlers.set_title),
        Command("public", "", "let everyone find and join the group", command_handlers.make_public),
        Command("private", "", "require an invite to join", command_handlers.make_private),
        Command("retry", "", "resend refused messages", command_handlers.send_again, is_immediate=True),
        Command(
            "discard",
            "",
            "discard refused messages, or else those not sent yet",
            command_handlers.discard_refused,
            is_immediate=True,
        ),
        Command("leave", "", "leave the group and erase its local messages", command_handlers.leave_group),
        Command("disband", "", "delete the group for everyone", command_handlers.delete_group),
        Command(
            "alias",
            "[TEXT]",
            "set or clear your alias",
            command_handlers.set_alias,
            needs_group=False,
        ),
        Command(
            "reset",
            "",
            "create new keys, after a device was lost or replaced",
            key_handlers.reset_keys,
            needs_group=False,
        ),
        Command("password", "", "change your password", command_handlers.change_password, needs_group=False),
        Command("logout", "", "log out and erase all local data", command_handlers.log_out, needs_group=False),
        Command(
            "help",
            "[COMMAND]",
            "show keys and commands, or help on one command",
            command_handlers.show_help,
            needs_group=False,
        ),
        Command("quit", "", "quit the chat", command_handlers.leave_chat, needs_group=False),
    )
}
"""All commands by name, in the order of the help."""
