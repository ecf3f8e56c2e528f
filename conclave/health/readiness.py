"""Readiness of the server, for load balancers."""

from enum import StrEnum

from conclave.health.parts import Health, HealthPart, Phase
from conclave.health.storage import Storage


class Readiness(StrEnum):
    """Whether the server is ready, or the reason why it is not."""

    READY = "ready"
    STARTING = "starting"
    STOPPING = "stopping"
    UNREADABLE = "unreadable"


def readiness_of(health: Health, storage: Storage | None) -> Readiness:
    """Return whether the server is ready. ``storage``: None until it is open.

    It is ready even if the disk is full, since messages can be fetched. It is not ready if the database or the
    keys cannot be read.
    """
    if health.phase is Phase.STOPPING:
        return Readiness.STOPPING
    if health.phase is Phase.STARTING or storage is None:
        return Readiness.STARTING
    is_readable = storage.is_readable and HealthPart.VAULT not in health.faults
    return Readiness.READY if is_readable else Readiness.UNREADABLE
