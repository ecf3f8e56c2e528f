"""The line at the bottom: which keys do what. It shows as many as fit, each whole; F1 has all of them."""

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

KEYS = (
    ("F1", "Help", "screen.help"),
    ("^Q", "Quit", "app.quit"),
    ("F2", "Group", "screen.info"),
    ("^G", "Unread", "screen.step_unread"),
    ("^N", "New", "screen.prefill('/new ')"),
    ("Alt+↑↓", "Groups", "screen.step(1)"),
    ("^P", "More", "app.command_palette"),
)
"""Keys, what they do, and the same by the mouse; those that are needed most come first."""


class KeyLine(Static):
    """Keys, and what they do. A click on one does it."""

    def on_resize(self) -> None:
        """Show what fits into another width."""
        self.update(line(self.size.width))


def line(width: int) -> Content:
    """Return the keys that fit into so many cells."""
    made = Content("")
    for key, label, action in KEYS:
        part = Content.assemble(("  " if made else " "), (key, "$accent"), f" {label}")
        if made.cell_length + part.cell_length > width:
            break
        made += part.stylize(Style.from_meta({"@click": action}), 2 if made else 1)
    return made
