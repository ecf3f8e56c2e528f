"""Damages files as a disk does that forgets: a bit is another one, and the length is the same."""

from pathlib import Path


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
