"""Sets of numbers as ranges, in ascending order, that do not meet. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from conclave.keys.cover import Range


def joined(some: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the set of all numbers of ``some``: ranges in any order, which may overlap."""
    found: list[Range] = []
    for first, last in sorted(some):
        if found and first <= found[-1].last + 1:
            if last > found[-1].last:
                found[-1] = Range(found[-1].first, last)
        else:
            found.append(Range(first, last))
    return found


def of(numbers: Iterable[int]) -> list[Range]:
    """Return a set of single numbers."""
    return joined((number, number) for number in numbers)


def without(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers of ``some`` that are not among ``others``."""
    return list(_without(some, others))


def both(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in both."""
    return without(some, without(some, others))


def count(some: Iterable[Range]) -> int:
    """Return how many numbers they are."""
    return sum(last - first + 1 for first, last in some)


def _without(some: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    place = 0
    for first, last in some:
        begin = first
        while place < len(others) and others[place].last < begin:
            place += 1
        at = place
        while at < len(others) and others[at].first <= last:
            if begin < others[at].first:
                yield Range(begin, others[at].first - 1)
            begin = others[at].last + 1
            at += 1
        if begin <= last:
            yield Range(begin, last)
