"""What is said where Spark does not start."""

import pytest

from spark.java import JavaStartError, why_not_started

pytestmark = pytest.mark.system

MEMORY = "Is [spark] driver_memory right for this machine?"
CALLED = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "


def test_a_master_that_gives_no_answer_is_told_as_that() -> None:
    told = why_not_started(
        Exception(
            "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
            "This stopped SparkContext was created at:"
        )
    )
    assert told.startswith("Spark's master does not respond, or rejects this driver")
    assert MEMORY not in told


@pytest.mark.parametrize(
    "error",
    [
        JavaStartError("Java ended with status 1."),
        Exception(
            f"{CALLED}java.lang.IllegalArgumentException: System memory 253427712 must be at least 471859200. Please"
            " increase heap size using the --driver-memory option.\n\tat org.apache.spark.memory"
        ),
    ],
)
def test_the_memory_is_asked_about_where_java_ended_at_once_or_speaks_of_it(error: Exception) -> None:
    told = why_not_started(error)
    assert told.endswith(MEMORY)
    assert "\n" not in told


def test_any_other_error_is_told_in_its_own_words() -> None:
    told = why_not_started(Exception(f"{CALLED}java.net.BindException: Cannot assign requested address\n\tat sun.nio"))
    assert told == "Cannot assign requested address"
