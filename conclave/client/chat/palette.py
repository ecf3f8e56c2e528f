"""What Ctrl+P lists: groups to go to, commands to begin."""

from collections.abc import Callable, Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from conclave.client.chat.commands import COMMANDS
from conclave.client.chat.screen import ChatScreen


class Doings(Provider):
    """Groups by their names, then commands by what they do, then colours."""

    async def discover(self) -> Hits:
        """List everything."""
        for title, says, do in self._all():
            yield DiscoveryHit(title, do, help=says)

    async def search(self, query: str) -> Hits:
        """List what matches."""
        matcher = self.matcher(query)
        for title, says, do in self._all():
            if (score := max(matcher.match(title), matcher.match(says))) > 0:
                yield Hit(score, matcher.highlight(title), do, help=says)

    def _all(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """Yield titles, which are markup, what each does in words, and what does it."""
        screen = self.screen
        if isinstance(screen, ChatScreen):
            for room in screen.conversation.rooms.ordered():
                yield escape(room.name), "go to this group", partial(screen.go, room.group.group_id)
            for each in COMMANDS.values():
                yield f"/{each.name}", each.says, partial(screen.action_prefill, f"/{each.name} ")
        yield "Colours", "choose a theme", self.app.action_change_theme
