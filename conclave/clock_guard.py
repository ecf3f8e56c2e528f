"""Noticing that the wall clock is wrong, before anything is deleted by it. Pure.

The rule is that of the retention contract, section 5: the wall clock must not move apart from the clock that
nobody sets, nor fall behind what is already stored. Across a restart of the machine only the second can be seen.
"""

from conclave.clock import Reading

TOLERANCE_SECONDS = 600


def clock_fault(known: Reading, newest_stored: int, current: Reading) -> str:
    """Return what is wrong with the clock, or nothing.

    ``known``: the last reading that was right; ``newest_stored``: when the newest message was stored, Unix
    seconds.
    """
    if current.boot_id and current.boot_id == known.boot_id:
        apart = (current.wall - known.wall) - (current.since_boot - known.since_boot)
        if abs(apart) > TOLERANCE_SECONDS:
            return f"the wall clock was set {'forward' if apart > 0 else 'back'} by {abs(apart)} seconds"
    behind = max(known.wall, newest_stored) - current.wall
    if behind > TOLERANCE_SECONDS:
        return f"the wall clock is {behind} seconds behind what is already stored"
    return ""
