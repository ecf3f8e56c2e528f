"""The command palette (Ctrl+P): groups, commands and themes."""

from collections.abc import Callable, Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from conclave.client.chat.commands import COMMANDS
from conclave.client.chat.screen import ChatScreen


class CommandPalette(Provider):
    """Lists groups by name, commands by description, and themes."""

    async def discover(self) -> Hits:
        """List everything."""
        for title, description, action in self._all():
            yield DiscoveryHit(title, action, help=description)

    async def search(self, query: str) -> Hits:
        """List what matches."""
        matcher = self.matcher(query)
        for title, description, action in self._all():
            if (score := max(matcher.match(title), matcher.match(description))) > 0:
                yield Hit(score, matcher.highlight(title), action, help=description)

    def _all(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """Yield title (as markup), description and action."""
        screen = self.screen
        if isinstance(screen, ChatScreen):
            for room in screen.conversation.rooms.ordered():
                yield escape(room.name), "open this group", partial(screen.open_group, room.group.group_id)
            for each in COMMANDS.values():
                yield f"/{each.name}", each.description, partial(screen.action_prefill, f"/{each.name} ")
        yield "Theme", "choose a colour theme", self.app.action_change_theme
