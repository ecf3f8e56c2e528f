"""Noticing that the wall clock is wrong, before anything is deleted by it; and the time to act on meanwhile. Pure.

The rule is that of the retention contract, section 5: the wall clock must not move apart from the clock that
nobody sets, nor fall behind what is already stored. Across a restart of the machine only the second can be seen.
"""

from conclave.clock import Reading

TOLERANCE_SECONDS = 600


def seconds_apart(known: Reading, current: Reading) -> int:
    """Return by how much the wall clock was set forward since ``known``, of the same start of the machine."""
    return (current.wall - known.wall) - (current.since_boot - known.since_boot)


def time_to_act_on(wall: int, acted_until: int) -> int:
    """Return the time by which to hide, settle and stamp: what has expired stays so if the clock steps back a little.

    ``acted_until``: the greatest time that was acted on. A wall clock that is further behind counts as it is, until
    somebody has looked.
    """
    return wall if acted_until - wall > TOLERANCE_SECONDS else max(wall, acted_until)


def clock_fault(known: Reading, newest_stored: int, current: Reading) -> str:
    """Return what is wrong with the clock, or nothing.

    ``known``: the last reading that was right; ``newest_stored``: when the newest message was stored, or the
    greatest time that was acted on, Unix seconds.
    """
    if current.boot_id and current.boot_id == known.boot_id:
        apart = seconds_apart(known, current)
        if abs(apart) > TOLERANCE_SECONDS:
            return f"the wall clock was set {'forward' if apart > 0 else 'back'} by {abs(apart)} seconds"
    behind = max(known.wall, newest_stored) - current.wall
    if behind > TOLERANCE_SECONDS:
        return f"the wall clock is {behind} seconds behind what is already stored"
    return ""
