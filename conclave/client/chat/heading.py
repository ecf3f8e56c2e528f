"""What stands above the messages: how the group is called, how long they live, and who holds them back."""

from uuid import UUID

from textual.content import Content

from conclave.client.chat import formatting
from conclave.client.chat.rooms import Room, held_by


def heading(room: Room, user_id: UUID, *, is_plain: bool, is_low: bool) -> Content:
    """Return the rows above a group's messages. ``is_low``: there is room only for what has to be known."""
    label = "title: " if is_plain else ""  # no colour tells it from the name there
    title = f"  {label}{formatting.harmless(room.group.alias)}" if room.group.alias and not is_low else ""
    parts = _parts(room, is_plain=is_plain)
    if not is_low:
        parts.insert(1 if room.expiry is not None else 0, formatting.count(len(room.group.members), "member"))
        if room.is_admin(user_id):
            parts.insert(2 if room.expiry is not None else 1, "you are an admin")
    if not parts:
        return Content.assemble((room.name, "bold $accent"), title)
    told = (", " if is_plain else " · ").join(parts)
    return Content.assemble((room.name, "bold $accent"), title, "\n", (told, "$foreground 60%"))


def _parts(room: Room, *, is_plain: bool) -> list[str]:
    """Return what has to be known: how long messages live, and what changes that."""
    parts = [formatting.policy(room.expiry)] if room.expiry is not None else []
    if room.retention and room.retention.legal_hold:
        parts.append("legal hold")
    if room.expiry == formatting.AFTER_FETCH and (holding := held_by(room)):
        parts.append(f"waits for {formatting.listed(holding, 3)}")
    if room.self_destruct_seconds:
        mark = "" if is_plain else "✶ "
        parts.append(f"{mark}yours go {formatting.remaining(room.self_destruct_seconds)} after reading")
    return parts
