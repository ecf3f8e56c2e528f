"""Detects a wrong wall clock before it causes a deletion. Pure functions.

The rule is section 5 of the retention contract: the wall clock must not diverge from the monotonic clock, nor fall
behind times that are already stored. Across a reboot only the latter can be checked. While the clock is wrong,
``effective_time`` gives the time to act on.
"""

from conclave.clock import Reading

TOLERANCE_SECONDS = 600
"""Differences of up to 10 minutes are tolerated."""


def seconds_apart(last_correct: Reading, current: Reading) -> int:
    """Return the seconds by which the wall clock was set forward since ``last_correct``; negative if it was set back.

    Both readings must be from the same boot.
    """
    return (current.wall - last_correct.wall) - (current.since_boot - last_correct.since_boot)


def effective_time(wall: int, acted_until: int) -> int:
    """Return the Unix second to use for hiding, settling and time stamps.

    ``acted_until``: the greatest time that was acted on. It is returned if the wall clock is behind it by at most
    TOLERANCE_SECONDS, so that expired messages stay expired. If the wall clock is further behind, returns ``wall``;
    an operator then has to accept the clock.
    """
    return wall if acted_until - wall > TOLERANCE_SECONDS else max(wall, acted_until)


def clock_fault(last_correct: Reading, newest_stored: int, current: Reading) -> str:
    """Return a description of the fault of the clock; "" if there is none.

    ``last_correct``: the last correct reading. ``newest_stored``: the time of the newest message, or the greatest time
    that was acted on, in Unix seconds.
    """
    if current.boot_id and current.boot_id == last_correct.boot_id:
        shift = seconds_apart(last_correct, current)
        if abs(shift) > TOLERANCE_SECONDS:
            return f"the wall clock was set {'forward' if shift > 0 else 'back'} by {abs(shift)} seconds"
    behind = max(last_correct.wall, newest_stored) - current.wall
    if behind > TOLERANCE_SECONDS:
        return f"the wall clock is {behind} seconds behind what is already stored"
    return ""
