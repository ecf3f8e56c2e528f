"""Holds lines that are typed while a command is still opening the group that they are for. Pure."""

from conclave.client.chat import commands
from conclave.client.chat.rooms import Room


class TypeAhead:
    """The lines typed after a command that opens a group, until it has finished."""

    def __init__(self) -> None:
        """Start without a command."""
        self.line = ""
        """The command, or ""."""
        self.lines: list[str] = []
        self._room: Room | None = None
        self._is_open = False

    def begin(self, line: str, room: Room | None) -> None:
        """Record a command that opens a group, and the group that was open."""
        self.line, self._room, self._is_open = line, room, False

    def applies_to(self, room: Room | None) -> bool:
        """Tell whether lines typed while ``room`` is open are for the group being opened."""
        return bool(self.line) and room is self._room

    def capture(self, line: str, room: Room | None) -> bool:
        """Hold a line if it has to wait; return whether it does."""
        if not self.applies_to(room) or commands.is_independent(line):
            return False
        self.lines.append(line)
        return True

    def mark_open(self) -> None:
        """Record that the group is open."""
        self._is_open = True

    def finish(self) -> tuple[list[str], bool]:
        """Return the held lines, and whether their group is open."""
        lines, self.lines, self.line = self.lines, [], ""
        return lines, self._is_open
