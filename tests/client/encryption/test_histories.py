"""Random histories of a group whose members come, go, are invited, change keys, and are away while messages expire.

Everything happens close together, commits cross, and what led into an epoch has often gone. However it was, all members
are in one epoch in the end, without anybody saying anything. `CONCLAVE_SAMPLE=all` plays 400.
"""

import random
from contextlib import suppress
from uuid import UUID

import pytest

from conclave.client.codec import MembershipChange
from conclave.client.errors import EncryptionError
from tests.client.encryption.test_branches import GROUP, Person, Server, check, until_quiet
from tests.support import sample

STEPS = 40
SETTLED_SECONDS = 300.0
"""After so many seconds all have to be in one epoch."""
WHATS = (
    *("renew", "renew", "renew", "say", "join", "join", "leave", "keys", "kick"),
    *("invite", "invite", "accept", "accept", "off", "on", "restart", "expire"),
)


class Club:
    """Five people, of whom four have come in. The first has begun the group, and stays; two are admins."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        self.server = Server()
        self.people = [Person(self.server) for _ in range(5)]
        self.away: set[int] = set()
        self.invites: dict[UUID, tuple[UUID, MembershipChange]] = {}
        self.welcomes: dict[UUID, bytes] = {}
        self.members: frozenset[UUID] = frozenset()
        first, second, *others = self.people
        first.begin()
        second.joins(is_admin=True)
        for person in others[:2]:
            person.joins()
            until_quiet(self.server, self.people[:4], 2.0)

    def step(self) -> None:
        """Let one to three things happen at the same moment, and some people read of it."""
        for _ in range(self.chance.choice([1, 1, 2, 3])):
            with suppress(EncryptionError):
                self._act(self.chance.randrange(len(self.people)), self.chance.choice(WHATS))
        if (members := frozenset(self.server.members)) != self.members:
            self.members = members
            for each in set(range(len(self.people))) - self.away:  # an event tells them
                self.people[each].codec.schedule_check(GROUP)
        for each in self.chance.sample(range(len(self.people)), len(self.people)):
            if each not in self.away and self.chance.random() < 0.7:
                if self.chance.random() < 0.8:
                    self._read(self.people[each])
                if self.chance.random() < 0.8:
                    self.people[each].settle()
        self.server.time += self.chance.choice([0.1, 0.5, 0.5, 2.0, 7.0])

    def _read(self, person: Person) -> None:
        welcome = self.welcomes.pop(person.user_id, b"")
        if welcome and person.user_id in self.server.members:
            person.codec.join_by_welcome(GROUP, welcome)
        person.read()

    def _act(self, who: int, what: str) -> None:
        if what == "on":
            self.away.discard(who)
            self.people[who].codec.schedule_check(GROUP)
        elif what == "expire":
            self.server.gone = max(self.server.gone, len(self.server.messages) - self.chance.randrange(6))
        elif who in self.away:
            return
        elif what == "off":
            self.away.add(who)
        elif self.people[who].user_id in self.server.members:
            self._as_member(who, what)
        elif what == "join":
            self.people[who].joins()
        elif what == "accept" and self.people[who].user_id in self.invites:
            self._accept(self.people[who])

    def _as_member(self, who: int, what: str) -> None:
        person = self.people[who]
        match what:
            case "renew" if person.is_in:
                person.renews()
            case "say" if person.is_in:
                person.says("something")
            case "keys":
                person.codec.reset_keys()
            case "restart":
                person.codec._agenda._groups.clear()  # what is in memory only
                person.codec.schedule_check(GROUP)
            case "invite" if person.is_in and self.server.members[person.user_id] == "admin":
                self._invite(person, self.chance.choice(self.people))
            case "leave" if who:
                del self.server.members[person.user_id]
                person.codec.forget(GROUP)
            case "kick" if who:
                del self.server.members[person.user_id]

    def _invite(self, person: Person, invitee: Person) -> None:
        [package] = invitee.codec.key_packages(1, last_resort=False).regular
        change = person.codec.add(GROUP, invitee.user_id, package)
        self.invites[invitee.user_id] = person.user_id, change

    def _accept(self, person: Person) -> None:
        inviter, change = self.invites.pop(person.user_id)
        if inviter in self.server.members:
            self.server.members[person.user_id] = "member"
            self.welcomes[person.user_id] = change.welcome
            self.server.store(inviter, change.commit, change.group_info)
            person.codec.schedule_check(GROUP)

    def settle(self) -> None:
        """Let all come back, and go on until they are in one epoch."""
        for each in self.people:
            self._read(each)
            each.codec.schedule_check(GROUP)
        for _ in range(int(SETTLED_SECONDS / 10)):
            until_quiet(self.server, self.people, 10.0)
            with suppress(AssertionError):
                check(self.server, self.people)
                return
        check(self.server, self.people)


@pytest.mark.parametrize("number", sample.some(range(400), 6, "histories of keys"))
def test_all_are_in_one_epoch_in_the_end(number: int) -> None:
    club = Club(number)
    for _ in range(STEPS):
        club.step()
    club.settle()
