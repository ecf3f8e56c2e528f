"""The list of groups and invites."""

from typing import Any
from uuid import UUID

from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from conclave.client.chat import formatting
from conclave.client.chat.rooms import Room, Rooms
from conclave.wire.results import InviteInfo

MORE = "  "
"""The indent of further rows of a name."""

INVITE = "✉ "
"""The prefix of an invite."""

WIDTH = 22
"""The width of the list, which leaves room for messages on 80 columns."""


def split_label(label: str, width: int) -> tuple[Content, Content]:
    """Split a name: the part that fits into the first row, and the rest in further rows."""
    first = Content(label).wrap(width)[0]
    rest = Content(label[len(first.plain.rstrip()) :].lstrip())
    lines = rest.wrap(WIDTH - 2 - len(MORE)) if rest else []
    return first.pad_right(max(0, width - first.cell_length)), Content.assemble(*(f"\n{MORE}{line}" for line in lines))


class Sidebar(OptionList):
    """Groups with policy and unread count, then invites."""

    COMPONENT_CLASSES = {"sidebar--policy", "sidebar--unread", "sidebar--mention", "sidebar--heading", "sidebar--open"}

    class Chosen(UiMessage):
        """A group or an invite was chosen."""

        def __init__(self, *, group_id: UUID | None = None, invite_id: UUID | None = None) -> None:
            self.group_id = group_id
            self.invite_id = invite_id
            super().__init__()

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._shown: tuple[str, list[tuple[str | None, str, bool]]] = ("", [])

    def show(self, rooms: Rooms, open_group_id: UUID | None, now: int) -> None:
        """Show groups and invites; the highlighted one stays so. ``now``: the server's time."""
        options = [self._room(each, now, is_open=each.group.group_id == open_group_id) for each in rooms.ordered()]
        if not options:
            options.append(Option(Content("no groups yet"), disabled=True))
        if rooms.invites:
            options.append(Option(Content("Invites").stylize(self._style("heading")), disabled=True))
            options += [self._invite(each) for each in rooms.invites]
        shown = self.app.theme, [(each.id, str(each.prompt), each.id == f"g{open_group_id}") for each in options]
        if shown == self._shown:
            return
        self._shown = shown
        highlighted = self.highlighted_option.id if self.highlighted_option else None
        self.set_options(options)
        kept = next((index for index, each in enumerate(options) if each.id and each.id == highlighted), None)
        here = next((index for index, each in enumerate(options) if each.id == f"g{open_group_id}"), None)
        self.highlighted = kept if kept is not None and self.has_focus else here

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Report the choice."""
        event.stop()
        chosen = event.option_id or ""
        if chosen.startswith("g"):
            self.post_message(self.Chosen(group_id=UUID(chosen[1:])))
        elif chosen.startswith("i"):
            self.post_message(self.Chosen(invite_id=UUID(chosen[1:])))

    def _invite(self, invite: InviteInfo) -> Option:
        label = formatting.name_with_title(invite.group_name, invite.group_alias)
        return Option(Content.assemble(INVITE, *split_label(label, WIDTH - 2 - len(INVITE))), f"i{invite.invite_id}")

    def _room(self, room: Room, now: int, *, is_open: bool) -> Option:
        policy = formatting.short_policy(room.expiry) if room.expiry is not None else ""
        unread = f" {formatting.unread(room.unread)}" if room.unread else ""
        mentions = f" @{formatting.unread(len(room.mentions))}" if room.mentions else ""
        muted = " ⊘" if room.is_muted(now) else ""
        width = WIDTH - 2 - len(policy) - len(unread) - len(mentions) - len(muted) - 1
        name, more = split_label(room.sidebar_label, width)
        if is_open or room.unread:
            name, more = name.stylize(self._style("open")), more.stylize(self._style("open"))
        return Option(
            Content.assemble(
                name,
                " ",
                (policy, self._style("policy")),
                (muted, self._style("policy")),
                (mentions, self._style("mention")),
                (unread, self._style("unread")),
                more,
            ),
            f"g{room.group.group_id}",
        )

    def _style(self, name: str) -> Any:
        return self.get_visual_style(f"sidebar--{name}", partial=True)
