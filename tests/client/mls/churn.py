"""A group that changes at random. After each epoch all who are in it see the same, whoever made their client.

The server is a list of messages in their order: what counts of two commits is the first.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.client.mls.actors import Actor


@dataclass
class Churn:
    """``make``: a new client. ``most``: members at most."""

    chance: random.Random
    make: Callable[[], Actor]
    most: int
    members: list[Actor] = field(default_factory=list)
    outside: list[Actor] = field(default_factory=list)
    late: list[tuple[bytes, bytes, int, Actor, list[Actor], int]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def begin(self) -> None:
        first = self.make()
        first.create()
        self.members = [first]
        self.add(3)

    def some(self, among: Sequence[Actor], count: int) -> list[Actor]:
        return self.chance.sample(list(among), min(count, len(among)))

    def newcomer(self) -> Actor:
        if self.outside and self.chance.random() < 0.5:
            return self.outside.pop(self.chance.randrange(len(self.outside)))
        return self.make()

    # Steps

    def step(self) -> None:
        steps = [self.renew, self.race, self.external, self.resync, self.by_reference]
        if len(self.members) < self.most:
            steps += [self.grow, self.grow, self.change]
        if len(self.members) > 2:
            steps += [self.shrink]
        chosen = self.chance.choice(steps)
        self.steps.append(chosen.__name__)
        self.talk()
        chosen()
        self.agree()
        self.read_late()

    def renew(self) -> None:
        self.settle(self.chance.choice(self.members), [], [])

    def grow(self) -> None:
        self.add(self.chance.randint(1, 3))

    def add(self, count: int) -> None:
        new = [self.newcomer() for _ in range(min(count, self.most - len(self.members)))]
        self.settle(self.chance.choice(self.members), new, [])

    def shrink(self) -> None:
        committer, *gone = self.some(self.members, self.chance.randint(2, min(4, len(self.members) - 1)))
        self.settle(committer, [], gone)

    def change(self) -> None:
        committer, *gone = self.some(self.members, min(2, len(self.members)))
        self.settle(committer, [self.newcomer()], gone)

    def race(self) -> None:
        """Several commit at once; only the first counts, and who loses goes on."""
        committers = self.some(self.members, 3)
        for other in committers[1:]:
            other.commit([], [], private=False)
        self.settle(committers[0], [], [])

    def external(self) -> None:
        if len(self.members) < self.most:
            new = self.newcomer()
            message = new.external(self.chance.choice(self.members).group_info(), resync=False)
            self.spread(message, self.members)
            self.members.append(new)

    def resync(self) -> None:
        lost = self.chance.choice(self.members)
        others = [one for one in self.members if one is not lost]
        if others:
            message = lost.external(self.chance.choice(others).group_info(), resync=True)
            self.spread(message, others)
            self.late = [one for one in self.late if lost not in one[4]]

    def by_reference(self) -> None:
        """Members propose, another one commits."""
        committer, *proposers = self.some(self.members, 4)
        gone: list[Actor] = []
        new: list[Actor] = []
        for proposer in proposers:
            kind = self.chance.choice(["update", "update", "remove", "add"])
            victim = self.chance.choice([one for one in self.members if one is not committer])
            busy = victim in gone or victim in proposers
            if kind == "remove" and not busy:
                message = proposer.propose("remove", None, victim.index())
                gone.append(victim)
            elif kind == "add" and len(self.members) + len(new) < self.most:
                new.append(self.newcomer())
                message = proposer.propose("add", new[-1].key_package(), None)
            elif proposer.proposes_updates:
                message = proposer.propose("update", None, None)
            else:
                continue
            self.spread(message, [one for one in self.members if one is not proposer])
        commit, welcome = committer.commit([], [], private=self.chance.random() < 0.3)
        self.deliver(commit, welcome, new, gone)

    # What steps do

    def settle(self, committer: Actor, new: list[Actor], gone: list[Actor]) -> None:
        packages, indexes = [one.key_package() for one in new], [one.index() for one in gone]
        commit, welcome = committer.commit(packages, indexes, private=self.chance.random() < 0.2)
        self.deliver(commit, welcome, new, gone)

    def deliver(self, commit: bytes, welcome: bytes | None, new: list[Actor], gone: list[Actor]) -> None:
        self.spread(commit, self.members)
        for one in gone:
            self.members.remove(one)
            one.leave()
            self.outside.append(one)
            self.late = [(*entry[:4], [r for r in entry[4] if r is not one], entry[5]) for entry in self.late]
        for one in new:
            assert welcome is not None
            one.join(welcome)
            self.members.append(one)

    def spread(self, message: bytes, to: Sequence[Actor]) -> None:
        for one in self.some(to, len(to)):
            if self.chance.random() < 0.2:
                one.rest()
            one.receive(message)

    def talk(self) -> None:
        """Some say something. Part of it is read at once, in any order, the rest epochs later."""
        said = []
        for sender in self.some(self.members, self.chance.randint(0, 2)):
            readers = [one for one in self.some(self.members, 3) if one is not sender]
            for _ in range(self.chance.randint(1, 3)):
                data = self.chance.randbytes(self.chance.choice([0, 1, 30, 700]))
                entry = (sender.encrypt(data), data, sender.index(), sender, readers, self.chance.randint(0, 3))
                said.append(entry)
        self.chance.shuffle(said)
        self.late += said
        self.read_late(passed=False)

    def read_late(self, *, passed: bool = True) -> None:
        still = []
        for message, data, index, sender, readers, epochs in self.late:
            if epochs == 0:
                for one in readers:
                    assert one.read(message) == (data, index), (one.name, sender.name)
            else:
                still.append((message, data, index, sender, readers, epochs - passed))
        self.late = still

    def agree(self) -> None:
        sights = {one.name: one.sight() for one in self.members}
        expected = sorted(one.index() for one in self.members)
        first = next(iter(sights.values()))
        assert first[3] == expected
        assert all(sight == first for sight in sights.values()), (sights, self.steps[-3:])
