"""Describes the events of a stream as schemas, for which OpenAPI 3.1 has no keyword."""

from typing import Any

from conclave.wire.events import EVENTS
from conclave.wire.openapi.json_schema import docstring_text

_ALL = "ServerEvent"

EVENT_REF = {"$ref": f"#/components/schemas/{_ALL}"}
"""The schema of each event of a stream. OpenAPI 3.2 has ``itemSchema`` for it; in 3.1 it is an extension."""

_LAGGED = "lagged"
_COUNT = {"type": "integer", "minimum": 1}


def event_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of events by name: one for each event, and ServerEvent as their union.

    Each has the name of the event, and its data parsed as JSON.
    """
    described = {_LAGGED: ("Events were lost: read your whole state again. The data says how many.", _COUNT)} | {
        name: (docstring_text(kind), {"$ref": f"#/components/schemas/{kind.wire}"}) for name, kind in EVENTS.items()
    }
    found = {_type_name(name): _event(name, about, data) for name, (about, data) in described.items()}
    to = {name: f"#/components/schemas/{_type_name(name)}" for name in described}
    found[_ALL] = {
        "description": "An event of `GET /events`: the value of its `event` line, and that of its `data` line as JSON.",
        "oneOf": [{"$ref": each} for each in to.values()],
        "discriminator": {"propertyName": "event", "mapping": to},
    }
    return found


def _type_name(event: str) -> str:
    return "Streamed" + "".join(word.capitalize() for word in event.split("_"))


def _event(name: str, about: str, data: dict[str, Any]) -> dict[str, Any]:
    properties = {"event": {"type": "string", "const": name}, "data": data}
    return {"type": "object", "description": about, "properties": properties, "required": ["event", "data"]}
