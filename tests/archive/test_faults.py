"""What libraries say about the archive, in one line."""

import pytest

from conclave.archive.faults import one_line

DELTA = (
    "Generic LocalFileSystem error\n          \x1b[31m↳\x1b[0m Unable to open file /a/_delta_log/3.json#1\n"
    "           \x1b[31m↳\x1b[0m Read-only file system (os error 30)\n"
)
JAVA = (
    "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n"
    "\tat org.apache.spark.X\nCaused by: java.io.IOException: No space left on device\n\tat java.base/java.io.F\n"
)


UNREADABLE = (
    "An error occurred while calling o7.collectToPython.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT]"
    " Encountered error while reading file file:/a/b.parquet.  SQLSTATE: KD001\n\tat org.apache.spark.X\n"
    "Caused by: java.lang.RuntimeException: file:/a/b.parquet is not a Parquet file.\n\tat org.apache.parquet.X\n"
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            DELTA,
            "Generic LocalFileSystem error: Unable to open file /a/_delta_log/3.json#1:"
            " Read-only file system (os error 30)",
        ),
        (JAVA, "IOException: No space left on device"),
        (
            UNREADABLE,
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a/b.parquet.  SQLSTATE: KD001",
        ),
        (
            UNREADABLE.replace("java.lang.RuntimeException: file:/a/b.parquet is", "java.io.IOException: is"),
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a/b.parquet.  SQLSTATE: KD001:"
            " IOException: is not a Parquet file.",
        ),
        (
            UNREADABLE.replace(
                "java.lang.RuntimeException: file:/a/b.parquet is not a Parquet file.",
                "org.apache.parquet.io.ParquetDecodingException: could not verify page integrity",
            ),
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a/b.parquet.  SQLSTATE: KD001:"
            " ParquetDecodingException: could not verify page integrity: see docs/operations/archive.md#a-damaged-file",
        ),
        ("Kernel error: Json error\n   0: <unknown>\n   1: <unknown>", "Kernel error: Json error"),
        ("", "OSError"),
    ],
)
def test_what_a_library_says_becomes_one_line(said: str, told: str) -> None:
    assert one_line(OSError(said) if said else OSError()) == told
