"""What the cleanup worker tells its server: lines of JSON on the worker's standard output.

The server sends the settings to the worker's standard input, as a line, and again whenever they change; and orders, a
line each. The end of that input is the server's end.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EXIT_GIVE_UP = 78
"""The worker's exit status if starting it again would change nothing (EX_CONFIG)."""


class Order(StrEnum):
    """What an operator has the worker do at once: each of its jobs, or a dry run over everything."""

    RUN = "run"
    COUNT = "count"


class State(StrEnum):
    """What the worker does: it is ready for runs, waits for another process's run, has begun a run, or a dry one."""

    READY = "ready"
    WAITING = "waiting"
    BEGAN = "began"
    COUNTING = "counting"


@dataclass(frozen=True)
class Ended:
    """A run has ended."""

    report: dict[str, Any]
    """As a log line has it."""
    due_in: float
    """Seconds until the next run."""


@dataclass(frozen=True)
class Counted:
    """A dry run has ended. Fields as those of Ended."""

    report: dict[str, Any]
    due_in: float


@dataclass(frozen=True)
class Fault:
    """Cleanup does not work. ``reason`` says why."""

    reason: str
    due_in: float | None = None
    """Seconds until the next try; None if this process makes none."""


Message = State | Ended | Counted | Fault


def order_line(order: Order) -> str:
    """Write an order as one line, with its line end. Settings are an object of JSON, an order is a text."""
    return json.dumps(order) + "\n"


def order_of(line: str) -> Order | None:
    """Return the order in a line for the worker; None: it has settings. Raises ValueError."""
    told = json.loads(line)
    return Order(told) if isinstance(told, str) else None


def to_line(message: Message) -> str:
    """Write a message as one line, with its line end."""
    return json.dumps(_mapping(message)) + "\n"


def from_line(line: bytes) -> Message:
    """Read a line. Raises ValueError if it is no message."""
    told = json.loads(line)
    match told:
        case {"fault": str(reason), "due_in": float(due_in) | int(due_in)}:
            return Fault(reason, due_in)
        case {"fault": str(reason)}:
            return Fault(reason)
        case {"run": dict(report), "due_in": float(due_in) | int(due_in)}:
            return Ended(report, due_in)
        case {"counted": dict(report), "due_in": float(due_in) | int(due_in)}:
            return Counted(report, due_in)
        case dict() if list(told.values()) == [True]:
            return State(next(iter(told)))
    raise ValueError(f"no message: {line[:100]!r}")


def _mapping(message: Message) -> dict[str, Any]:
    match message:
        case State():
            return {message: True}
        case Ended():
            return {"run": message.report, "due_in": message.due_in}
        case Counted():
            return {"counted": message.report, "due_in": message.due_in}
        case Fault(due_in=None):
            return {"fault": message.reason}
        case Fault():
            return {"fault": message.reason, "due_in": message.due_in}
