"""The heading above the messages: name, policy, and who has not fetched yet."""

from uuid import UUID

from textual.content import Content

from conclave.client.chat import formatting
from conclave.client.chat.rooms import Room, missing_fetchers


def heading(room: Room, user_id: UUID, *, is_plain: bool, is_low: bool) -> Content:
    """Return the heading of a group. ``is_low``: only the essentials, for low screens."""
    label = "title: " if is_plain else ""  # no colour distinguishes it from the name
    title = f"  {label}{formatting.sanitize(room.group.alias)}" if room.group.alias and not is_low else ""
    parts = _parts(room, is_plain=is_plain)
    if not is_low:
        parts.insert(1 if room.expiry is not None else 0, formatting.count(len(room.group.members), "member"))
        if room.is_admin(user_id):
            parts.insert(2 if room.expiry is not None else 1, "you are an admin")
    if not parts:
        return Content.assemble((room.name, "bold $accent"), title)
    details = (", " if is_plain else " · ").join(parts)
    return Content.assemble((room.name, "bold $accent"), title, "\n", (details, "$foreground 60%"))


def _parts(room: Room, *, is_plain: bool) -> list[str]:
    """Return the essentials: policy, legal hold, missing fetches, and the user's timer."""
    parts = [formatting.policy(room.expiry)] if room.expiry is not None else []
    if room.retention and room.retention.legal_hold:
        parts.append("legal hold")
    if room.expiry == formatting.AFTER_FETCH and (holding := missing_fetchers(room)):
        parts.append(f"waiting for {formatting.join_names(holding, 3)}")
    if room.self_destruct_seconds:
        mark = "" if is_plain else "✶ "
        parts.append(f"{mark}yours self-destruct {formatting.time_left(room.self_destruct_seconds)} after reading")
    return parts
