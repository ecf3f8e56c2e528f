"""What the archive has is opened, or told as unreadable: never handed out as it lies there."""

from contextlib import closing
from pathlib import Path

import pytest

from conclave.keys import cipher, file, records
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.store import at_rest

A, B = b"a" * 16, b"b" * 16
NUMBERS = [5, 6]
UNTIL = 100
"""Up to this number messages may be under keys or as they came: the archive is taken over."""


def test_while_the_archive_is_taken_over_a_damaged_key_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file.create(path)
    with closing(KeyStore(path)) as keys:
        stored = {}
        for group_id in (A, B):
            (key,) = keys.of_new([(group_id, 5)])
            assert key
            stored[group_id] = [cipher.encrypt(key, group_id, 5, b"five"), b"six, as it came"]
            assert at_rest.opened(keys, group_id, UNTIL, NUMBERS, stored[group_id]) == [b"five", b"six, as it came"]
        keys.begin([(b"c" * 16, 1)])
    data = bytearray(path.read_bytes())
    data[Inspection(path).offset(A, 0) + records.UNIT_BYTES + 6] ^= 1
    path.write_bytes(data)
    with closing(KeyStore(path)) as keys:
        with pytest.raises(KeyFileError, match="is damaged: keys are missing"):
            at_rest.opened(keys, A, UNTIL, NUMBERS, stored[A])
        assert at_rest.opened(keys, B, UNTIL, NUMBERS, stored[B]) == [b"five", b"six, as it came"]
