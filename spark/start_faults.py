"""Says why Spark did not start, and what to look at. Pure."""

from conclave.archive.faults import one_line
from spark.cluster import PAGE
from spark.java import JavaStartError

_ADVICE = (
    (
        "stopped SparkContext",
        f"Spark's master does not answer, or does not take this driver, as without the same secret; see {PAGE}",
    ),
)
"""What an error of Spark has in it, and what to say instead."""

_MEMORY = "Is [spark] driver_memory right for this machine?"


def why_not_started(error: Exception) -> str:
    """Return one line on ``error``, with which a session could not be made.

    The memory is asked about only where it may be to blame: if Java has ended at once, or says so itself.
    """
    reason = one_line(error)
    for sign, advice in _ADVICE:
        if sign in reason:
            return advice
    return f"{reason} {_MEMORY}" if isinstance(error, JavaStartError) or "memory" in reason.lower() else reason
