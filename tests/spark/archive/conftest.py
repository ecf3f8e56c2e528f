"""What tests of the archive share."""

from collections.abc import Iterator

import pytest

from tests.support.cleaner import Cleaner


@pytest.fixture(params=["arrow", "spark"])
def eraser(request: pytest.FixtureRequest, cleaner: Cleaner) -> Iterator[str]:
    """Which of the two rewrites files in the runs of a test, although it is little."""
    cleaner.erases_by_spark = request.param == "spark"
    yield request.param
    cleaner.erases_by_spark = False
