"""Reads the messages of a batch from the hot store, in a separate process.

ADBC brings its own SQLite library. If a process has one file open through two SQLite libraries, it loses its locks when
either closes the file. While this process reads a batch, the run has the store open for the batches before it.
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
"""The minimum number of messages in a stream, except in the last one."""


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
        total, tables = 0, list[pyarrow.Table]()
        for (group_key,) in cursor.fetchall():
            cursor.execute(_READ.format(batch=int(batch), group_key=group_key, added=OVERHEAD_BYTES))
            rows = cursor.fetch_arrow_table()
            if rows.column(a.BODY).null_count:
                raise SystemExit(f"{rows.column(a.BODY).null_count} messages of group {group_key} have no body")
            if rows.num_rows:
                tables.append(_with_checksums(rows.cast(a.MOVING)))
            if sum(each.num_rows for each in tables) >= ROWS_AT_ONCE:
                total += _write(tables)
        total += _write(tables)
        _write_table(pyarrow.table({COUNT: [total]}))
    sys.stdout.buffer.flush()


def _with_checksums(rows: pyarrow.Table) -> pyarrow.Table:
    """Add the checksum of each message."""
    position = rows.column_names.index(a.CHECKSUM)
    return rows.set_column(position, a.MOVING.field(a.CHECKSUM), a.checksums_of(rows))


def _write(tables: list[pyarrow.Table]) -> int:
    """Write tables as one stream, and clear the list. Return the number of messages."""
    if not tables:
        return 0
    rows = pyarrow.concat_tables(tables)
    tables.clear()
    _write_table(rows)
    return int(rows.num_rows)


def _write_table(rows: pyarrow.Table) -> None:
    with pyarrow.ipc.new_stream(sys.stdout.buffer, rows.schema) as out:
        out.write_table(rows)


if __name__ == "__main__":
    main()
