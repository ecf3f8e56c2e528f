"""What the cleanup worker tells its server: lines of JSON on the worker's standard output.

The server sends the settings to the worker's standard input, as a line, and again when the level of the log has
changed; and orders, a line each. The end of that input means that the server has ended. A worker whose next run is far
off exits, and the next one is started with the rest of its schedule.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EXIT_GIVE_UP = 78
"""The worker's exit status if starting it again would change nothing (EX_CONFIG)."""


class WorkerOrder(StrEnum):
    """What an operator has the worker do at once: each of its jobs, or a dry run over everything."""

    RUN = "run"
    COUNT = "count"


class WorkerState(StrEnum):
    """What the worker does.

    It is ready for runs, looks what the next one needs and starts Java if that is Spark, waits for another process's
    run, has begun a run, or a dry one.
    """

    READY = "ready"
    PREPARING = "preparing"
    WAITING = "waiting"
    BEGAN = "began"
    COUNTING = "counting"


@dataclass(frozen=True)
class RunEnded:
    """A run has ended."""

    report: dict[str, Any]
    """As a log line has it."""
    due_in: float
    """Seconds until the next run."""


@dataclass(frozen=True)
class DryRunEnded:
    """A dry run has ended. Fields as those of Ended."""

    report: dict[str, Any]
    due_in: float


@dataclass(frozen=True)
class WorkerFault:
    """Cleanup does not work. ``reason`` says why."""

    reason: str
    due_in: float | None = None
    """Seconds until the next try; None if this process makes none."""


@dataclass(frozen=True)
class JavaStarted:
    """Java was started, which took ``seconds``."""

    seconds: float
    due_in: float
    """Seconds until the run for which it was started."""


@dataclass(frozen=True)
class OrderAccepted:
    """The worker has begun with an order, or is about to."""

    order: WorkerOrder


@dataclass(frozen=True)
class WorkerIdle:
    """The worker ends its Java and itself, and is to be started anew for its next job, or for an order.

    ``due``: in how many seconds each job of the schedule is due, in its order.
    """

    due: tuple[float, ...]

    @property
    def due_in(self) -> float:
        """Seconds until the next run."""
        return min(self.due)

    def later(self, seconds: float) -> "WorkerIdle":
        """Return the same as it is so many seconds later."""
        return WorkerIdle(tuple(each - seconds for each in self.due))


WorkerMessage = WorkerState | JavaStarted | RunEnded | DryRunEnded | OrderAccepted | WorkerIdle | WorkerFault


def asleep_text(asleep: WorkerIdle, now: float) -> str:
    """Write what the next worker is started with: its argument.

    ``now``: seconds of the monotonic clock, which all processes of a machine share. So the time that a start takes
    makes no run late.
    """
    return json.dumps(asleep.later(-now).due)


def asleep_of(text: str, now: float) -> WorkerIdle:
    """Read what ``asleep_text`` has written, as it is ``now``. Raises ValueError."""
    return WorkerIdle(tuple(map(float, json.loads(text)))).later(now)


def order_line(order: WorkerOrder) -> str:
    """Write an order as one line, with its line end. Settings are an object of JSON, an order is a text."""
    return json.dumps(order) + "\n"


def order_of(line: str) -> WorkerOrder | None:
    """Return the order in a line for the worker; None: it has settings. Raises ValueError."""
    message = json.loads(line)
    return WorkerOrder(message) if isinstance(message, str) else None


def to_line(message: WorkerMessage) -> str:
    """Write a message as one line, with its line end."""
    return json.dumps(_mapping(message)) + "\n"


def from_line(line: bytes) -> WorkerMessage:
    """Read a line. Raises ValueError if it is no message."""
    message = json.loads(line)
    match message:
        case {"fault": str(reason), "due_in": float(due_in) | int(due_in)}:
            return WorkerFault(reason, due_in)
        case {"fault": str(reason)}:
            return WorkerFault(reason)
        case {"run": dict(report), "due_in": float(due_in) | int(due_in)}:
            return RunEnded(report, due_in)
        case {"counted": dict(report), "due_in": float(due_in) | int(due_in)}:
            return DryRunEnded(report, due_in)
        case {"warm": float(seconds) | int(seconds), "due_in": float(due_in) | int(due_in)}:
            return JavaStarted(seconds, due_in)
        case {"taken": str(order)}:
            return OrderAccepted(WorkerOrder(order))
        case {"asleep": [_, *_] as due} if all(isinstance(each, float | int) for each in due):
            return WorkerIdle(tuple(due))
        case dict() if list(message.values()) == [True]:
            return WorkerState(next(iter(message)))
    raise ValueError(f"no message: {line[:100]!r}")


def _mapping(message: WorkerMessage) -> dict[str, Any]:
    match message:
        case JavaStarted():
            return {"warm": message.seconds, "due_in": message.due_in}
        case OrderAccepted():
            return {"taken": message.order}
        case WorkerIdle():
            return {"asleep": message.due}
        case WorkerState():
            return {message: True}
        case RunEnded():
            return {"run": message.report, "due_in": message.due_in}
        case DryRunEnded():
            return {"counted": message.report, "due_in": message.due_in}
        case WorkerFault(due_in=None):
            return {"fault": message.reason}
        case WorkerFault():
            return {"fault": message.reason, "due_in": message.due_in}
