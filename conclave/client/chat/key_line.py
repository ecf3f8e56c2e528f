"""The bottom line with the most important keys. F1 shows all of them."""

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
"""Key, label and action of a click; the most important ones first."""


class KeyLine(Static):
    """Keys and their meaning. A click on one acts like the key."""

    def on_resize(self) -> None:
        """Adjust to the width."""
        self.update(line(self.size.width))


def line(width: int) -> Content:
    """Return the keys that fit into a width."""
    made = Content("")
    for key, label, action in KEYS:
        part = Content.assemble(("  " if made else " "), (key, "$accent"), f" {label}")
        if made.cell_length + part.cell_length > width:
            break
        made += part.stylize(Style.from_meta({"@click": action}), 2 if made else 1)
    return made
