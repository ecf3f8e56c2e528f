"""Writes copies of a key file: each has what the file has at one moment, in the place of a former copy."""

from pathlib import Path

from conclave.keys.file import KeyFile, KeyFileError, head_of, told, wait, write_whole
from conclave.keys.replacing import COPYING, NEW, beside, remove_leftovers, take_its_place
from conclave.system.locks import hold_file


def copy(keys: KeyFile, target: Path) -> int:
    """Write what lives to ``target``, in the place of a former copy, which is overwritten. Return its serial.

    Raises KeyFileError, also if another key file, or something else, is there; and if this one is damaged, or older
    than the copy, which may have what is missing here.
    """
    path = keys.path
    with told(path), hold_file(beside(path, COPYING), wait), told(target):
        if target.exists() and target.samefile(path):
            raise KeyFileError(f"{target}: is the key file itself, and no copy of it")
        remove_leftovers(target)
        head, pieces = keys.whole()  # in memory: the other disk may be slow, or hang, and others would wait
        found = head_of(target)
        if target.exists() and (found is None or found.keys_id != head.keys_id):
            raise KeyFileError(f"{target}: is not a copy of these keys: move it away")
        if found and found.serial > head.serial:
            raise KeyFileError(
                f"{target}: is newer than {path}, in whose place an older key file was put: stop the server"
                " and put the newer one there, or move it away"
            )
        write_whole(beside(target, NEW), head, pieces, path)
        take_its_place(target)
        return head.serial
