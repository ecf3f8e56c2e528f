"""Reads the messages of a batch from the hot store, in a process of its own.

ADBC brings its own SQLite library. If a process has one file open through two SQLite libraries, it loses its locks when
either closes the file. The run has the store open meanwhile, for the batches before this one.
"""

import sys
from contextlib import closing

import adbc_driver_sqlite.dbapi
import pyarrow

from spark.archive import columns as a

COUNT = "count"
"""The column of the last stream: how many messages the streams before it have."""

_PICK = """
CREATE TEMP TABLE picked AS
SELECT message_id, lifetime, group_key, sequence_num, sender_id, is_commit, messages.created_at
FROM archive_move_ranges AS ranges CROSS JOIN messages USING (group_key) LEFT JOIN groups USING (group_key)
WHERE batch = ? AND sequence_num BETWEEN first_seq AND ranges.last_seq AND sequence_num > ifnull(archived_seq, 0)
ORDER BY message_id
"""


def main() -> None:
    """Write the stored messages of a batch that the archive does not serve yet, with their checksums, to stdout.

    There is one Arrow stream for each segment of bodies. A last stream has one number: how many messages these are.
    Arguments: the database as a file URI, and the number of the batch.
    """
    uri, batch = sys.argv[1:]
    # Bodies may be moved meanwhile. ADBC is not in autocommit mode, so all of this reads one snapshot.
    with closing(adbc_driver_sqlite.dbapi.connect(f"{uri}?mode=ro")) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 5000")  # the last connection to close the store locks it for a moment
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(_PICK.replace("?", f"{int(batch):d}"))
        cursor.execute("SELECT message_id >> 32, count(*) FROM temp.picked GROUP BY 1")
        total = 0
        for segment, count in cursor.fetchall():
            total += count
            cursor.execute(
                "SELECT lifetime, group_key, sequence_num, sender_id, is_commit, created_at, 0 AS checksum,"
                " body AS mls_message"
                f" FROM temp.picked CROSS JOIN body_segment_{segment:d} ON body_id = message_id"
                f" WHERE message_id >> 32 = {segment:d} AND body IS NOT NULL"
            )
            rows = cursor.fetch_arrow_table()
            if rows.num_rows != count:
                raise SystemExit(f"segment {segment} has bodies of {rows.num_rows} messages, not of {count}")
            _write(_summed(rows.cast(a.MOVING)))
    _write(pyarrow.table({COUNT: [total]}))
    sys.stdout.buffer.flush()


def _summed(rows: pyarrow.Table) -> pyarrow.Table:
    """Give each message its checksum here, before it goes anywhere else."""
    at = rows.column_names.index(a.CHECKSUM)
    return rows.set_column(at, a.MOVING.field(a.CHECKSUM), a.checksums_of(rows))


def _write(rows: pyarrow.Table) -> None:
    with pyarrow.ipc.new_stream(sys.stdout.buffer, rows.schema) as out:
        out.write_table(rows)


if __name__ == "__main__":
    main()
