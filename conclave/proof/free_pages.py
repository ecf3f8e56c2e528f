"""Examines what belongs to no table: free pages, the page that is never used, and what is behind the last page."""

import time
from array import array
from pathlib import Path

from conclave.proof import pages, remains
from conclave.proof.bodies import REST, Hold
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.proof.frozen import Frozen
from conclave.proof.pages import ByteRange, MalformedError, first_used

CHUNK_BYTES = 1024 * 1024
"""What is behind the last page is read 1 MiB at a time."""


def examine(part: ProofPart, path: Path, hold: Hold) -> None:
    """Examine all free pages, in the order in which they lie. Raises as ``bodies.examine_segments`` does."""
    done = 0
    is_over = False
    while not is_over:
        began = time.monotonic()
        with hold() as view:
            done = _free_pages(part, path, view, done)
            is_over = not done
            if is_over:
                _lock_page(part, path, view)
                _past_end(part, path, view)
                part.looked_at["pages of the file in all"] = view.layout.pages
        time.sleep(REST * (time.monotonic() - began))


def _free_pages(part: ProofPart, path: Path, view: Frozen, done: int) -> int:
    """Examine the free pages behind page ``done``, for as long as the moment may be held; return the last, or 0."""
    unused: dict[int, ByteRange] = {}
    try:
        found = _listed(view, unused)
    except MalformedError as error:
        part.add(Finding(Kind.MALFORMED, str(path), f"the list of free pages cannot be read: {error}"))
        return 0
    for page in sorted(each for each in found if each > done):
        _free_page(part, path, view, page, unused.get(page))
        if view.is_over():
            return page
    return 0


def _free_page(part: ProofPart, path: Path, view: Frozen, page: int, unused: ByteRange | None) -> None:
    """Examine one free page. ``unused``: what of it is not the list of free pages; None for all."""
    part.count("pages")
    try:
        data = view.read(page)
    except MalformedError as error:
        part.add(Finding(Kind.MALFORMED, str(path), f"a free page cannot be read: {error}", page))
        return
    offset = remains.in_free_page(data, unused, view.layout) if unused else first_used(data, 0, len(data))
    if offset >= 0:
        part.add(Finding(Kind.REMAINS, str(path), "bytes in a free page", page, view.layout.begin_of(page) + offset))


def _listed(view: Frozen, unused: dict[int, ByteRange]) -> "array[int]":
    """Return all free pages; ``unused`` gets what is unused of those that have a part of the list."""
    found = array("I")
    page = view.layout.first_trunk
    while page:
        if page in unused:
            raise MalformedError("it is a circle")
        trunk = pages.read_trunk(view.read(view.layout.require_page(page, "a free page")), view.layout)
        unused[page] = trunk.unused
        found.append(page)
        found.extend(trunk.leaves)
        if len(found) > view.layout.free:
            raise MalformedError("it has more pages than it should")
        page = trunk.following
    if len(found) != view.layout.free:
        raise MalformedError("it has fewer pages than it should")
    return found


def _lock_page(part: ProofPart, path: Path, view: Frozen) -> None:
    page = view.layout.lock_page
    if page <= view.layout.pages:
        _free_page(part, path, view, page, None)


def _past_end(part: ProofPart, path: Path, view: Frozen) -> None:
    at = view.layout.begin_of(view.layout.pages + 1)
    while at < view.size:
        data = view.read_bytes(at, CHUNK_BYTES)
        offset = first_used(data, 0, len(data))
        part.count("bytes past the end", len(data))
        if offset >= 0 or not data:
            told = "bytes behind the last page of the database"
            part.add(Finding(Kind.PAST_END, str(path), told, None, at + max(0, offset)))
            return
        at += len(data)
