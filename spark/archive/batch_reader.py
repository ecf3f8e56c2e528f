"""Reads the messages of a batch from the hot store, in a separate process.

ADBC brings its own SQLite library. If a process has one file open through two SQLite libraries, it loses its locks when
either closes the file. The run has the store open meanwhile, for the batches before this one.
"""

import sys
from contextlib import closing

import adbc_driver_sqlite.dbapi
import pyarrow

from conclave.keys.cipher import OVERHEAD_BYTES
from spark.archive import columns as a

COUNT = "count"
"""The column of the last stream: the number of messages in the streams before it."""

_READ = """
SELECT lifetime, group_key, sequence_num, sender_id, is_commit, messages.created_at, 0 AS checksum,
    length(body) - {added:d} AS size, body AS mls_message
FROM archive_move_ranges AS ranges CROSS JOIN messages USING (group_key) LEFT JOIN groups USING (group_key)
    LEFT JOIN message_bodies USING (message_id)
WHERE batch = {batch:d} AND sequence_num BETWEEN first_seq AND ranges.last_seq
    AND sequence_num > ifnull(archived_seq, 0) AND group_key = {group_key:d}
"""

ROWS_AT_ONCE = 8192
"""The least number of messages in a stream, except the last one."""


def main() -> None:
    """Write the stored messages of a batch that the archive does not serve yet, with their checksums, to stdout.

    Writes Arrow streams of messages, group by group. The last stream has only the number of messages.
    Arguments: the database as a file URI, and the number of the batch.
    """
    uri, batch = sys.argv[1:]
    # ADBC is not in autocommit mode, so all of this reads one snapshot.
    with closing(adbc_driver_sqlite.dbapi.connect(f"{uri}?mode=ro")) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 5000")  # the last connection to close the store locks it for a moment
        cursor.execute(f"SELECT group_key FROM archive_move_ranges WHERE batch = {int(batch):d} ORDER BY group_key")
        total, waiting = 0, list[pyarrow.Table]()
        for (group_key,) in cursor.fetchall():
            cursor.execute(_READ.format(batch=int(batch), group_key=group_key, added=OVERHEAD_BYTES))
            rows = cursor.fetch_arrow_table()
            if rows.column(a.BODY).null_count:
                raise SystemExit(f"{rows.column(a.BODY).null_count} messages of group {group_key} have no body")
            if rows.num_rows:
                waiting.append(_summed(rows.cast(a.MOVING)))
            if sum(each.num_rows for each in waiting) >= ROWS_AT_ONCE:
                total += _write(waiting)
        total += _write(waiting)
        _write_table(pyarrow.table({COUNT: [total]}))
    sys.stdout.buffer.flush()


def _summed(rows: pyarrow.Table) -> pyarrow.Table:
    """Add the checksum of each message."""
    at = rows.column_names.index(a.CHECKSUM)
    return rows.set_column(at, a.MOVING.field(a.CHECKSUM), a.checksums_of(rows))


def _write(waiting: list[pyarrow.Table]) -> int:
    """Write tables as one stream, and clear the list. Return how many messages they have."""
    if not waiting:
        return 0
    rows = pyarrow.concat_tables(waiting)
    waiting.clear()
    _write_table(rows)
    return int(rows.num_rows)


def _write_table(rows: pyarrow.Table) -> None:
    with pyarrow.ipc.new_stream(sys.stdout.buffer, rows.schema) as out:
        out.write_table(rows)


if __name__ == "__main__":
    main()
