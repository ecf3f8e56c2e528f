"""Shows what is in a group, and lets it vanish at its second."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message as UiMessage
from textual.scroll_view import ScrollView
from textual.strip import Strip

from conclave.client.chat import rows
from conclave.client.chat.rows import Item, Key, Look, Row
from conclave.client.chat.shown_messages import ShownMessages
from conclave.client.events import Message

_NAMES = {f"timeline--name-{number}" for number in range(rows.NAME_COLOURS)}

MOST_WIDTH = 100
"""Rows have at most 100 cells, so that on a wide screen the time that is left stands near its text."""


class Timeline(ScrollView, can_focus=True):
    """The messages of the open group. It keeps its place: the end, or whatever was at the top.

    At the end it goes on with what comes, as long as all of that can be seen: of more than a screen it shows the first.
    """

    COMPONENT_CLASSES = _NAMES | {
        "timeline--own",
        "timeline--text",
        "timeline--mention",
        "timeline--unreadable",
        "timeline--draft",
        "timeline--refused",
        "timeline--notice",
        "timeline--alarm",
        "timeline--day",
        "timeline--new",
        "timeline--time",
        "timeline--fuse",
        "timeline--fuse-short",
        "timeline--fuse-ends",
    }

    class Seen(UiMessage):
        """Messages are on the screen that were not before, since their group was opened."""

        def __init__(self, group_id: UUID, numbers: Sequence[int]) -> None:
            self.group_id = group_id
            self.numbers = numbers
            super().__init__()

    class Begins(UiMessage):
        """The first row is on the screen: earlier messages could be loaded."""

    class Ends(UiMessage):
        """The last row is on the screen: later messages could be loaded."""

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._rows: list[Row] = []
        self._items: list[Item] = []
        self._look: Look | None = None
        self._group_id: UUID | None = None
        self._at_end = True
        self._shown = ShownMessages()
        self._new_after: int | None = None
        self._is_drawn = True
        self._wraps = rows.Wraps()

    def show(self, group_id: UUID | None, items: Iterable[Item], look: Look) -> None:
        """Show the items of a group, in this widget's width, whatever ``look`` says.

        Another group is shown from its end, or from where its unread messages begin.
        """
        is_other = group_id != self._group_id
        self._at_end = (self._at_end or is_other) and not look.has_later
        self._group_id, self._items, self._look = group_id, list(items), look
        if is_other:
            self._shown, self._new_after = ShownMessages(), None
            self._shown.pass_by(self._messages())
        self._lay_out()
        if is_other:
            self._go_to_new()
        self.look_around()

    def leave(self) -> None:
        """Forget the place: what is shown next is shown as another group is."""
        self._group_id = None

    def tick(self, now: int) -> None:
        """Count down. What is gone by now is taken away at once, whoever else will say so."""
        if self._look is None:
            return
        self._look = replace(self._look, now=now)
        left = [each for each in self._items if not rows.is_gone(each, now)]
        if len(left) < len(self._items):
            self._items = left
            self._lay_out()
        elif not self._look.is_plain:
            self.refresh()

    @property
    def text(self) -> str:
        """What is shown, as text."""
        return "\n".join(self._line(each).plain.rstrip() for each in self._rows)

    def go_to_end(self) -> None:
        """Show the end, and stay there: the user wants to."""
        self._at_end = True
        self._shown.pass_by(self._messages())
        self._new_after = None
        self._scroll(len(self._rows))

    def go_to(self, number: int) -> None:
        """Show a message, with something of what comes before it."""
        place = next((index for index, each in enumerate(self._rows) if each.number == number), None)
        if place is not None:
            self._scroll(place - self.size.height // 3)
            self._at_end = self.is_at_end() and not self._has_later()

    def action_page_down(self) -> None:
        """Go on by a page, each of whose rows is drawn, however fast keys come."""
        self._page(1)

    def action_page_up(self) -> None:
        """Go back by a page."""
        self._page(-1)

    def _page(self, pages: int) -> None:
        """Scroll at once, not later, when rows may have vanished above; but not before this page was drawn."""
        if self._is_drawn:
            self._scroll(self.scroll_offset.y + pages * self.size.height)
        else:
            self.call_after_refresh(self._page, pages)

    def is_at_end(self) -> bool:
        """Tell whether the last row is on the screen."""
        return self.scroll_offset.y >= self.max_scroll_y

    def is_shown(self, number: int | None) -> bool:
        """Tell whether something of a message is on the screen."""
        top = self.scroll_offset.y
        return any(number in (each.number, *each.also) for each in self._rows[top : top + self.size.height])

    def render_line(self, y: int) -> Strip:
        """Return a row of the screen."""
        index = self.scroll_offset.y + y
        if index >= len(self._rows):
            return Strip.blank(self.size.width, self.visual_style.rich_style)
        line = self._line(self._rows[index])
        width = self.size.width
        return Strip(line.render_segments(self.visual_style), line.cell_length).adjust_cell_length(
            width, self.visual_style.rich_style
        )

    def on_mount(self) -> None:
        """Look again when the terminal is looked at again."""
        self.watch(self.app, "app_focus", self.look_around, init=False)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for another width. At another height the end stays on the screen."""
        if self._look and self._look.width != self._width():
            self._look = replace(self._look, width=self._width())
            self._lay_out()
        elif self._at_end:
            self._follow()
        self.look_around()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note where the user has gone."""
        super().watch_scroll_y(old_value, new_value)
        was_at_end, self._at_end = self._at_end, self.is_at_end() and not self._has_later()
        if self._at_end and not was_at_end:
            self._shown.pass_by(self._messages())
        self.look_around()

    def _width(self) -> int:
        return min(MOST_WIDTH, self.scrollable_content_region.width)

    def look_around(self) -> None:
        """Tell what is on the screen once it is drawn, unless nobody looks at it.

        Not before: while rows are laid out it goes through places that nobody ever sees.
        """
        self._is_drawn = False
        self.call_after_refresh(self._tell)

    def _tell(self) -> None:
        self._is_drawn = True
        if not self._rows or self._group_id is None or self.size.height == 0:
            return
        if self.scroll_offset.y == 0:
            self.post_message(self.Begins())
        if self.is_at_end() and self._has_later():
            self.post_message(self.Ends())
        if not self.app.app_focus or self.app.screen is not self.screen:  # which is "current" below a dialog too
            return
        top, end = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        following = {each.key for each in self._rows[end:]}
        shown = [each for each in self._rows[top:end] if each.number and each.key not in following]
        new = self._shown.show((number for each in shown for number in (each.number, *each.also)), time.monotonic())
        if new:
            self.post_message(self.Seen(self._group_id, new))

    def _has_later(self) -> bool:
        return self._look is not None and self._look.has_later

    def _messages(self) -> list[Message]:
        return [each for each in self._items if isinstance(each, Message)]

    def _lay_out(self) -> None:
        if self._look is None:
            return
        following = list(dict.fromkeys(each.key for each in self._rows[self.scroll_offset.y :]))
        within = self._index_within(self._rows, following[0] if following else None, self.scroll_offset.y)
        at_end = self._at_end
        self._make_rows()
        if at_end:
            self._follow()
            return
        # What was at the top, or the first after it that is still there.
        places = {each.key: index for index, each in reversed(list(enumerate(self._rows)))}
        kept = next((key for key in following if key in places), None)
        if kept is not None:
            self._scroll(places[kept] + (within if kept == following[0] else 0))
        self._at_end = at_end

    def _make_rows(self) -> None:
        """Make the rows for this width; ``read_before`` is where the end was not followed any more, if so."""
        if self._look is None:
            return
        read_before = self._look.read_before if self._new_after is None else self._new_after
        look = replace(self._look, width=self._width(), read_before=read_before)
        self._rows = rows.lay_out(self._items, look, self._wraps)
        self.virtual_size = Size(self._width(), len(self._rows))
        self.refresh()

    def _follow(self) -> None:
        """Go on at the end; or, if that would scroll away what nobody has seen, stay where it begins."""
        if not self.size.height:  # nothing can be seen: it is asked again once something can
            self._scroll(len(self._rows))
            self._at_end = True
            return
        unseen = self._look and self._shown.first_unseen(self._messages(), self._look.user_id, time.monotonic())
        if unseen and self._place(unseen) < len(self._rows) - self.size.height:
            self._new_after = unseen.sequence_num - 1
            self._make_rows()
            self._scroll(self._place(unseen))
        else:
            self._scroll(len(self._rows))
        self._at_end = not unseen or self.is_at_end()

    def _place(self, message: Message) -> int:
        """Return where the rows of a message begin, with what stands above it."""
        return next((index for index, each in enumerate(self._rows) if each.is_of(message)), len(self._rows))

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=max(0, min(y, len(self._rows) - self.size.height)), animate=False, force=True, immediate=True)

    def _go_to_new(self) -> None:
        """Show where unread messages begin, if they do not all fit at the end."""
        new = next((index for index, each in enumerate(self._rows) if each.style == "new"), None)
        if new is not None and len(self._rows) - new > self.size.height:
            self._scroll(new)
            self._at_end = False

    @staticmethod
    def _index_within(found: list[Row], key: Key | None, index: int) -> int:
        """Return how many rows of the same item come before one, which may have been the last one's end."""
        within, index = 0, min(index, len(found))
        while within < index and found[index - within - 1].key == key:
            within += 1
        return within

    def _line(self, row: Row) -> Content:
        """Put a row together: its text, and on the right the time or what is left of it."""
        text = row.text.stylize(self._style(row.style))
        text = Content(" " * row.indent) + text
        if row.right:
            return self._with_right(text, [(row.right, "time")])
        if row.message and self._look and not self._look.is_plain:
            left, circle, style = rows.left(row.message, self._look.now)
            if circle:
                return self._with_right(text, [(f"{left} ", style), (circle, style)])
        return text

    def _with_right(self, text: Content, parts: list[tuple[str, str]]) -> Content:
        right = Content.assemble(*((part, self._style(style)) for part, style in parts))
        gap = max(1, self._width() - text.cell_length - right.cell_length)
        return Content.assemble(text, " " * gap, right)

    def _style(self, name: str) -> Any:
        return self.get_visual_style(f"timeline--{name}", partial=True)
