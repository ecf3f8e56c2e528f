"""Tells whether the server serves: a load balancer asks it."""

from enum import StrEnum

from conclave.health.parts import Health, HealthPart, Phase
from conclave.health.storage import Storage


class Readiness(StrEnum):
    """What the server says when it is asked whether it is ready."""

    READY = "ready"
    STARTING = "starting"
    STOPPING = "stopping"
    UNREADABLE = "unreadable"


def readiness_of(health: Health, storage: Storage | None) -> Readiness:
    """Return whether the server serves, and if not, why. ``storage``: None before it is there.

    What works in part serves: with a full disk what is stored is still fetched. What cannot read its database, or the
    keys of its messages, serves no request.
    """
    if health.phase is Phase.STOPPING:
        return Readiness.STOPPING
    if health.phase is Phase.STARTING or storage is None:
        return Readiness.STARTING
    is_readable = storage.is_readable and HealthPart.VAULT not in health.faults
    return Readiness.READY if is_readable else Readiness.UNREADABLE
