"""Keeps the lines that are typed while a command still opens the group that they are for. Pure."""

from conclave.client.chat import commands
from conclave.client.chat.rooms import Room


class Ahead:
    """What was typed after a command that opens a group, until that has ended."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self.line = ""
        """The command, "" if none is under way."""
        self.lines: list[str] = []
        self._room: Room | None = None
        self._is_there = False

    def begin(self, line: str, room: Room | None) -> None:
        """Note a command that opens a group, and the group that was open when it was typed."""
        self.line, self._room, self._is_there = line, room, False

    def is_from(self, room: Room | None) -> bool:
        """Tell whether what is typed while ``room`` is open comes after the command, and is for its group."""
        return bool(self.line) and room is self._room

    def takes(self, line: str, room: Room | None) -> bool:
        """Keep a line if it has to wait; tell whether it has. Who has gone to another group means that one."""
        if not self.is_from(room) or commands.stands_alone(line):
            return False
        self.lines.append(line)
        return True

    def arrive(self) -> None:
        """Note that the group is open."""
        self._is_there = True

    def end(self) -> tuple[list[str], bool]:
        """The command has ended: return what was kept, and whether the group is open that it is for."""
        kept, self.lines, self.line = self.lines, [], ""
        return kept, self._is_there
