"""Archive commands for operators: comparing the archive with its index, and restoring a group from it."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark import readiness
from spark.environment import CleanupError, RunEnvironment

if TYPE_CHECKING:
    from spark.archive.check import Check
    from spark.archive.run import ArchiveRun


def verify_archive(engine: RunEnvironment) -> "Check":
    """Read the whole archive with the run lock, and return its differences from the index.

    Raises CleanupError and ArchiveRunError.
    """
    with _archive_at_rest(engine) as archive:
        return archive.check()


def restore_archived(engine: RunEnvironment, group_id: bytes) -> int:
    """Move a group's messages back from the archive; return how many. Raises any of EXPECTED."""
    with _archive_at_rest(engine) as archive:
        return archive.restore(group_id, readiness.spare_bytes(engine))


@contextlib.contextmanager
def _archive_at_rest(engine: RunEnvironment) -> Iterator["ArchiveRun"]:
    """Hold the run lock, and yield the archive. Raises CleanupError if there is none."""
    with readiness.ready(engine, lambda _: engine.warm_up()) as settings, engine.only_run():
        archive = engine.archive(readiness.open_hot(engine, settings, engine.clock.now()))
        if archive is None:
            raise CleanupError(f"{engine.path}: nothing is archived")
        try:
            yield archive
        finally:
            engine.empty_work()
