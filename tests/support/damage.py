"""Damages files as a disk does that forgets: a bit is another one, and the length is the same."""

from pathlib import Path

from pyarrow import parquet


def flip(folder: Path, body: bytes) -> Path:
    """Flip a bit in the middle of ``body``, in the one Parquet file under ``folder`` that has it; return the file.

    The body must be of bytes that cannot be compressed: only these are in a file as they are.
    """
    [path] = [path for path in sorted(folder.rglob("*.parquet")) if body in path.read_bytes()]
    flip_at(path, path.read_bytes().index(body) + len(body) // 2)
    return path


def flip_at(path: Path, place: int) -> None:
    """Flip the lowest bit of the byte at ``place`` of a file. Applied again, it is as before."""
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def misstate(path: Path, number: int, other: int) -> None:
    """Have a Parquet file name ``other`` wherever it names ``number`` as the least or the greatest of some rows."""
    content = path.read_bytes()
    metadata = parquet.read_metadata(path)
    last = metadata.row_group(metadata.num_row_groups - 1).column(metadata.num_columns - 1)
    start = last.data_page_offset + last.total_compressed_size  # what comes then is about the rows before
    told, instead = (b"\x08" + value.to_bytes(8, "little") for value in (number, other))  # a length comes first
    assert told in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(told, instead))
