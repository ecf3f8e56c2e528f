"""Tells whether the server serves: a load balancer asks it."""

from enum import StrEnum

from conclave.health.parts import Health, Phase
from conclave.health.storage import Storage


class Standing(StrEnum):
    """What the server says when it is asked whether it is ready."""

    READY = "ready"
    STARTING = "starting"
    STOPPING = "stopping"
    UNREADABLE = "unreadable"


def standing(health: Health, storage: Storage | None) -> Standing:
    """Return whether the server serves, and if not, why. ``storage``: None before it is there.

    What works in part serves: with a full disk what is stored is still fetched. What cannot read its database serves
    no request.
    """
    if health.phase is Phase.STOPPING:
        return Standing.STOPPING
    if health.phase is Phase.STARTING or storage is None:
        return Standing.STARTING
    return Standing.READY if storage.is_readable else Standing.UNREADABLE
