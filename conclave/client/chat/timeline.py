"""The messages of the open group, which disappear when they expire."""

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
from conclave.client.chat.rows import Item, RowContext, RowKey, TimelineRow
from conclave.client.chat.shown_messages import ShownMessages
from conclave.client.events import Message

_NAMES = {f"timeline--name-{number}" for number in range(rows.NAME_COLOURS)}

MAX_WIDTH = 100
"""Rows have at most 100 cells, so that on a wide screen the time left is near the text."""


class Timeline(ScrollView, can_focus=True):
    """The messages of the open group. The scroll position is kept, at the end or at the top row.

    At the end it follows new messages as long as they fit on the screen; of more, it shows the first.
    """

    COMPONENT_CLASSES = _NAMES | {
        "timeline--own",
        "timeline--text",
        "timeline--mention",
        "timeline--unreadable",
        "timeline--pending",
        "timeline--refused",
        "timeline--notice",
        "timeline--alarm",
        "timeline--day",
        "timeline--new",
        "timeline--time",
        "timeline--countdown",
        "timeline--countdown-short",
        "timeline--countdown-ends",
    }

    class Seen(UiMessage):
        """Messages became visible for the first time since the group was opened."""

        def __init__(self, group_id: UUID, numbers: Sequence[int]) -> None:
            self.group_id = group_id
            self.numbers = numbers
            super().__init__()

    class ReachedStart(UiMessage):
        """The first row is visible: earlier messages can be loaded."""

    class ReachedEnd(UiMessage):
        """The last row is visible: later messages can be loaded."""

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._rows: list[TimelineRow] = []
        self._items: list[Item] = []
        self._row_context: RowContext | None = None
        self._group_id: UUID | None = None
        self._at_end = True
        self._shown = ShownMessages()
        self._new_after: int | None = None
        self._is_drawn = True
        self._wrap_cache = rows.WrapCache()

    def show(self, group_id: UUID | None, items: Iterable[Item], context: RowContext) -> None:
        """Show the items of a group. The width of ``context`` is replaced by the widget's.

        A newly opened group is shown from its end, or from its first unread message.
        """
        is_other = group_id != self._group_id
        self._at_end = (self._at_end or is_other) and not context.has_later
        self._group_id, self._items, self._row_context = group_id, list(items), context
        if is_other:
            self._shown, self._new_after = ShownMessages(), None
            self._shown.skip_to_end(self._messages())
        self._lay_out()
        if is_other:
            self._go_to_new()
        self.report_visible()

    def reset_position(self) -> None:
        """Forget the scroll position: the next call of ``show`` treats the group as newly opened."""
        self._group_id = None

    def tick(self, now: int) -> None:
        """Update countdowns, and remove expired messages."""
        if self._row_context is None:
            return
        self._row_context = replace(self._row_context, now=now)
        left = [each for each in self._items if not rows.is_gone(each, now)]
        if len(left) < len(self._items):
            self._items = left
            self._lay_out()
        elif not self._row_context.is_plain:
            self.refresh()

    @property
    def text(self) -> str:
        """The contents as text."""
        return "\n".join(self._line(each).plain.rstrip() for each in self._rows)

    def go_to_end(self) -> None:
        """Scroll to the end, and follow it."""
        self._at_end = True
        self._shown.skip_to_end(self._messages())
        self._new_after = None
        self._scroll(len(self._rows))

    def go_to(self, number: int) -> None:
        """Scroll to a message, with some context above it."""
        place = next((index for index, each in enumerate(self._rows) if each.number == number), None)
        if place is not None:
            self._scroll(place - self.size.height // 3)
            self._at_end = self.is_at_end() and not self._has_later()

    def action_page_down(self) -> None:
        """Scroll down by a page; each page is drawn."""
        self._page(1)

    def action_page_up(self) -> None:
        """Scroll up by a page."""
        self._page(-1)

    def _page(self, pages: int) -> None:
        """Scroll by pages, after the previous page was drawn."""
        if self._is_drawn:
            self._scroll(self.scroll_offset.y + pages * self.size.height)
        else:
            self.call_after_refresh(self._page, pages)

    def is_at_end(self) -> bool:
        """Tell whether the last row is visible."""
        return self.scroll_offset.y >= self.max_scroll_y

    def is_shown(self, number: int | None) -> bool:
        """Tell whether a message is visible, at least in part."""
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
        """Report visible messages when the terminal gets the focus."""
        self.watch(self.app, "app_focus", self.report_visible, init=False)

    def on_resize(self, event: events.Resize) -> None:
        """Adjust to the size. The end stays visible."""
        if self._row_context and self._row_context.width != self._width():
            self._row_context = replace(self._row_context, width=self._width())
            self._lay_out()
        elif self._at_end:
            self._follow_end()
        self.report_visible()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end if the user scrolled there."""
        super().watch_scroll_y(old_value, new_value)
        was_at_end, self._at_end = self._at_end, self.is_at_end() and not self._has_later()
        if self._at_end and not was_at_end:
            self._shown.skip_to_end(self._messages())
        self.report_visible()

    def _width(self) -> int:
        return min(MAX_WIDTH, self.scrollable_content_region.width)

    def report_visible(self) -> None:
        """Report visible messages after drawing, if the terminal has the focus.

        During layout, the scroll position passes places that are never drawn.
        """
        self._is_drawn = False
        self.call_after_refresh(self._report)

    def _report(self) -> None:
        self._is_drawn = True
        if not self._rows or self._group_id is None or self.size.height == 0:
            return
        if self.scroll_offset.y == 0:
            self.post_message(self.ReachedStart())
        if self.is_at_end() and self._has_later():
            self.post_message(self.ReachedEnd())
        if not self.app.app_focus or self.app.screen is not self.screen:  # is_current holds below a dialog too
            return
        top, end = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        following = {each.key for each in self._rows[end:]}
        shown = [each for each in self._rows[top:end] if each.number and each.key not in following]
        new = self._shown.show((number for each in shown for number in (each.number, *each.also)), time.monotonic())
        if new:
            self.post_message(self.Seen(self._group_id, new))

    def _has_later(self) -> bool:
        return self._row_context is not None and self._row_context.has_later

    def _messages(self) -> list[Message]:
        return [each for each in self._items if isinstance(each, Message)]

    def _lay_out(self) -> None:
        if self._row_context is None:
            return
        following = list(dict.fromkeys(each.key for each in self._rows[self.scroll_offset.y :]))
        within = self._index_within(self._rows, following[0] if following else None, self.scroll_offset.y)
        at_end = self._at_end
        self._make_rows()
        if at_end:
            self._follow_end()
            return
        # Keep the row at the top, or the first one after it that remains.
        places = {each.key: index for index, each in reversed(list(enumerate(self._rows)))}
        kept = next((key for key in following if key in places), None)
        if kept is not None:
            self._scroll(places[kept] + (within if kept == following[0] else 0))
        self._at_end = at_end

    def _make_rows(self) -> None:
        """Lay out for this width. The line "new" is where following stopped, if it did."""
        if self._row_context is None:
            return
        read_before = self._row_context.read_before if self._new_after is None else self._new_after
        context = replace(self._row_context, width=self._width(), read_before=read_before)
        self._rows = rows.lay_out(self._items, context, self._wrap_cache)
        self.virtual_size = Size(self._width(), len(self._rows))
        self.refresh()

    def _follow_end(self) -> None:
        """Scroll to the end, or to the first unseen message if that would scroll away."""
        if not self.size.height:  # not visible yet
            self._scroll(len(self._rows))
            self._at_end = True
            return
        unseen = self._row_context and self._shown.first_unseen(
            self._messages(), self._row_context.user_id, time.monotonic()
        )
        if unseen and self._place(unseen) < len(self._rows) - self.size.height:
            self._new_after = unseen.sequence_num - 1
            self._make_rows()
            self._scroll(self._place(unseen))
        else:
            self._scroll(len(self._rows))
        self._at_end = not unseen or self.is_at_end()

    def _place(self, message: Message) -> int:
        """Return the index of the first row of a message."""
        return next((index for index, each in enumerate(self._rows) if each.is_of(message)), len(self._rows))

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=max(0, min(y, len(self._rows) - self.size.height)), animate=False, force=True, immediate=True)

    def _go_to_new(self) -> None:
        """Scroll to the first unread message, unless all unread ones fit at the end."""
        new = next((index for index, each in enumerate(self._rows) if each.style == "new"), None)
        if new is not None and len(self._rows) - new > self.size.height:
            self._scroll(new)
            self._at_end = False

    @staticmethod
    def _index_within(found: list[TimelineRow], key: RowKey | None, index: int) -> int:
        """Return how many rows of the same item precede a row."""
        within, index = 0, min(index, len(found))
        while within < index and found[index - within - 1].key == key:
            within += 1
        return within

    def _line(self, row: TimelineRow) -> Content:
        """Return a row with time or time left on the right."""
        text = row.text.stylize(self._style(row.style))
        text = Content(" " * row.indent) + text
        if row.right:
            return self._with_right(text, [(row.right, "time")])
        if row.message and self._row_context and not self._row_context.is_plain:
            left, circle, style = rows.countdown(row.message, self._row_context.now)
            if circle:
                return self._with_right(text, [(f"{left} ", style), (circle, style)])
        return text

    def _with_right(self, text: Content, parts: list[tuple[str, str]]) -> Content:
        right = Content.assemble(*((part, self._style(style)) for part, style in parts))
        gap = max(1, self._width() - text.cell_length - right.cell_length)
        return Content.assemble(text, " " * gap, right)

    def _style(self, name: str) -> Any:
        return self.get_visual_style(f"timeline--{name}", partial=True)
