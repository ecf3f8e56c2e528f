"""Detects a wrong wall clock before anything is deleted by it. Pure functions.

The rule is section 5 of the retention contract: the wall clock must not diverge from the monotonic clock, nor fall
behind times that are already stored. Across a reboot only the latter can be checked. While the clock is wrong,
``effective_time`` gives the time to act on.
"""

from conclave.clock import Reading

TOLERANCE_SECONDS = 600
"""Differences of up to 10 minutes are tolerated."""


def seconds_apart(known: Reading, current: Reading) -> int:
    """Return the seconds by which the wall clock was set forward since ``known``; negative if it was set back.

    Both readings must be from the same boot.
    """
    return (current.wall - known.wall) - (current.since_boot - known.since_boot)


def effective_time(wall: int, acted_until: int) -> int:
    """Return the Unix second by which to hide, settle and stamp.

    ``acted_until``: the greatest time that was acted on. Returned if the wall clock is behind it by at most
    TOLERANCE_SECONDS, so that what has expired stays expired. If the wall clock is further behind, returns ``wall``;
    an operator then has to accept the clock.
    """
    return wall if acted_until - wall > TOLERANCE_SECONDS else max(wall, acted_until)


def clock_fault(known: Reading, newest_stored: int, current: Reading) -> str:
    """Return what is wrong with the clock, or "".

    ``known``: the last reading that was right. ``newest_stored``: when the newest message was stored, or the greatest
    time that was acted on, Unix seconds.
    """
    if current.boot_id and current.boot_id == known.boot_id:
        apart = seconds_apart(known, current)
        if abs(apart) > TOLERANCE_SECONDS:
            return f"the wall clock was set {'forward' if apart > 0 else 'back'} by {abs(apart)} seconds"
    behind = max(known.wall, newest_stored) - current.wall
    if behind > TOLERANCE_SECONDS:
        return f"the wall clock is {behind} seconds behind what is already stored"
    return ""
