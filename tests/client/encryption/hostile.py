"""What a hostile member sends: malformed or abusive proposals, commits, welcomes, key packages and group infos."""

import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock
from uuid import UUID, uuid4

from conclave.client import Client
from conclave.client.encryption.packages import SUITE
from conclave.client.mls import KeyPackage, MlsError, MlsGroup, OwnKeyPackage, Policy, basic, create_key_package
from conclave.client.mls.codec import opaque
from conclave.client.mls.commits import CommitInputs, CommitSpec, create_commit
from conclave.client.mls.credentials import Extension, ExtensionType
from conclave.client.mls.framing import (
    FramedContent,
    FramedContentAuthData,
    PublicMessage,
    Sender,
    SenderType,
    WireFormat,
    decode_message,
    encode_message,
)
from conclave.client.mls.key_schedule import PreSharedKeyID, PSKType, ResumptionPSKUsage
from conclave.client.mls.nodes import LeafNodeSource
from conclave.client.mls.proposals import (
    Add,
    Commit,
    ExternalInit,
    GroupContextExtensions,
    PreSharedKey,
    Proposal,
    ReInit,
    Remove,
    Update,
)
from conclave.client.mls.protection import sign
from conclave.client.mls.state import GroupState
from conclave.client.mls.suites import Kem
from conclave.client.mls.welcome import GroupInfo, Welcome
from conclave.wire.results import FetchedMessage
from tests.client.mls import forging

NOW = int(time.time())
LARGE = 700_000
"""Bytes that still fit into a request."""
ZERO = bytes(SUITE.kem.size)
LATE = (1 << 63) + 7
LAX = Policy(max_lifetime=1 << 62, admit_new_members=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let what this client refuses be made. The block awaits nothing: others in this process would refuse nothing."""
    with ExitStack() as stack:
        for where in (
            "validation.check_places",
            "welcome.check_places",
            "proposal_lists.check_kind",
            "proposal_lists.check_extensions",
            "transition.check_leaf",
            "proposal_lists.check_key_package",
        ):
            stack.enter_context(mock.patch(f"conclave.client.mls.{where}"))
        stack.enter_context(mock.patch.object(Kem, "check_public"))
        stack.enter_context(mock.patch("conclave.client.mls.transition.MAX_EPOCH", 1 << 64))
        yield


def large(extension_type: int = ExtensionType.APPLICATION_ID) -> Extension:
    return Extension(extension_type, os.urandom(LARGE))


def stranger() -> OwnKeyPackage:
    return create_key_package(SUITE, uuid4().bytes, SUITE.signature_key_pair().private, NOW)


def repackaged(own: OwnKeyPackage, *, init_key: bytes | None = None, **changes: object) -> KeyPackage:
    """Return a key package that says something else, signed again."""
    leaf = replace(own.key_package.leaf_node, **changes).signed(SUITE, own.signature_private)  # type: ignore[arg-type]
    package = replace(own.key_package, leaf_node=leaf, init_key=init_key or own.key_package.init_key)
    return package.signed(own.signature_private)


class Mallory:
    """A member with a session and the state of the club, and no rules. ``victim``: its admin, ``other``: a member."""

    def __init__(
        self, client: Client, club: UUID, state: GroupState, accomplice: Client, victim: UUID, other: UUID
    ) -> None:
        self.client, self.club, self.accomplice = client, club, accomplice
        self.group = MlsGroup(state, LAX)
        self.victim, self.other = victim, other
        self._up_to = 0

    @property
    def state(self) -> GroupState:
        return self.group._state

    async def everything(self) -> list[FetchedMessage]:
        """Return what has come since ``follow``."""
        found: list[FetchedMessage] = []
        while page := await self.client.fetch(self.club, found[-1].sequence_num if found else self._up_to):
            found += page
        return found

    async def follow(self) -> None:
        """Take what the others have sent."""
        for message in await self.everything():
            self._up_to = message.sequence_num
            before = self.group.copy()
            try:
                self.group.receive(message.mls_message, NOW)
            except MlsError:
                self.group = before

    def index_of(self, user_id: UUID) -> int:
        found = self.group.find(user_id.bytes)
        return found.leaf_index if found else 0

    async def proposes(self, proposal: Proposal) -> None:
        with unchecked():
            said = forging.authenticated(self.state, proposal)
            message = forging.public(self.state, said)
        await self.client.send(self.club, message)

    async def commits(self, *proposals: Proposal, info: bytes = b"", private: bool = False) -> None:
        """Commit to what is given, by a commit in which all keys and tags are right."""
        wire_format = WireFormat.PRIVATE_MESSAGE if private else WireFormat.PUBLIC_MESSAGE
        with unchecked():
            made = create_commit(self.state, CommitSpec(proposals, wire_format=wire_format), CommitInputs(LAX, NOW, {}))
            send = forging.private_message if private else forging.public
            after = MlsGroup(made.after, LAX)
            message, info = send(self.state, made.authenticated), info or after.group_info()
        await self._uploads(message, info)

    async def _uploads(self, commit: bytes, info: bytes = b"") -> None:
        await self.client.commit(self.club, commit_message=commit, group_info=info if len(info) < LARGE else b"")

    def info(self, **changes: object) -> bytes:
        """Return a group info that says something else, signed by this member."""
        body = decode_message(self.group.group_info())
        assert isinstance(body, GroupInfo)
        changed: GroupInfo = replace(body, **changes)  # type: ignore[arg-type]
        return encode_message(changed.signed(SUITE, self.state.signature_private))

    def update(self, **changes: object) -> Update:
        own = self.state.tree.member(self.state.own_index)
        leaf = replace(own, leaf_node_source=LeafNodeSource.UPDATE, lifetime=None, parent_hash=None, **changes)  # type: ignore[arg-type]
        return Update(leaf.signed(SUITE, self.state.signature_private, self.group.group_id, self.state.own_index))

    async def invites_into_a_trap(self, change: Callable[[MlsGroup], tuple[bytes, bytes, bytes]]) -> None:
        """Invite the victim into another group. ``change``: makes commit, welcome and group info."""
        trap = await self.client.create_group(f"trap_{uuid4().hex[:8]}")
        own = create_key_package(SUITE, self.client.session.user_id.bytes, self.state.signature_private, NOW)
        group = MlsGroup.create(own, NOW, policy=LAX)
        await self.client.commit(trap, group_info=group.group_info(), mls_group_id=group.group_id.hex())
        await self.client.deposit_invite(trap, self.victim, *change(group))

    async def publishes(self, package: bytes) -> None:
        """Have the accomplice's key package be this, also the one of last resort."""
        await self.accomplice.reset_account()
        await self.accomplice.upload_key_packages([package], package)


Kind = Callable[[Mallory], Awaitable[None]]


def resumption(group_id: bytes, epoch: int) -> PreSharedKey:
    usage = ResumptionPSKUsage.APPLICATION
    which = PreSharedKeyID(PSKType.RESUMPTION, os.urandom(64), usage=usage, psk_group_id=group_id, psk_epoch=epoch)
    return PreSharedKey(which)


def external_psk() -> PreSharedKey:
    return PreSharedKey(PreSharedKeyID(PSKType.EXTERNAL, os.urandom(64), b"nobody has this"))


def context_with(*extensions: Extension) -> GroupContextExtensions:
    return GroupContextExtensions(extensions)


async def flood(m: Mallory) -> None:
    for _ in range(20):
        await m.proposes(m.update(encryption_key=os.urandom(SUITE.kem.size), extensions=(large_leaf(),)))


def large_leaf() -> Extension:
    return Extension(ExtensionType.APPLICATION_ID, os.urandom(1_500))


async def asks_in_with_a_large_leaf(m: Mallory) -> None:
    own = stranger()
    package = repackaged(own, extensions=(large(),))
    sender = Sender(SenderType.NEW_MEMBER_PROPOSAL)
    content = FramedContent(m.group.group_id, m.group.epoch, sender, b"", Add(package))
    signature = sign(SUITE, WireFormat.PUBLIC_MESSAGE, content, own.signature_private, m.state.context.encode())
    await m.client.send(m.club, encode_message(PublicMessage(content, FramedContentAuthData(signature))))


def at_a_late_epoch(m: Mallory, content: Proposal | Commit) -> bytes:
    context = replace(m.state.context, epoch=LATE)
    return forging.public(m.state, forging.authenticated(m.state, content, context=context))


async def commits_at_a_late_epoch(m: Mallory) -> None:
    await m._uploads(at_a_late_epoch(m, Commit((), forging.renewal(m.state)[1])))


async def commits_with_a_wrong_tag(m: Mallory) -> None:
    await m._uploads(forging.commit_of(m.state))


async def commits_for_nobody(m: Mallory) -> None:
    """The path is encrypted to keys that nobody has."""
    _, path = forging.renewal(m.state)
    nodes = tuple(
        replace(
            node,
            encrypted_path_secret=tuple(
                replace(each, ciphertext=os.urandom(len(each.ciphertext))) for each in node.encrypted_path_secret
            ),
        )
        for node in path.nodes
    )
    await m._uploads(forging.commit_of(m.state, path=replace(path, nodes=nodes)))


async def commits_a_large_leaf(m: Mallory) -> None:
    own = m.state.tree.member(m.state.own_index)
    tree = m.state.tree.with_nodes({2 * m.state.own_index: replace(own, extensions=(large(),))})
    state = replace(m.state, public=replace(m.state.public, tree=tree))
    with unchecked():
        made = create_commit(state, CommitSpec(), CommitInputs(LAX, NOW, {}))
        commit = forging.public(m.state, made.authenticated)
    await m._uploads(commit)


async def comes_in_instead_of_the_victim(m: Mallory) -> None:
    """By an external commit that removes the leaf of somebody else."""
    own = create_key_package(SUITE, m.victim.bytes, SUITE.signature_key_pair().private, NOW)
    _, commit = MlsGroup.join_external(m.group.group_info(), own, NOW, resync=True, policy=LAX)
    await m._uploads(commit)


async def removes_the_victim_and_lies(m: Mallory) -> None:
    context = replace(m.state.context, epoch=(1 << 64) - 2)
    await m.commits(Remove(m.index_of(m.victim)), info=m.info(group_context=context))


async def publishes_info(m: Mallory, info: bytes) -> None:
    await m.client.commit(m.club, group_info=info)


async def trap_of_a_late_epoch(m: Mallory) -> None:
    [taken] = await m.client.key_packages_for(await any_group(m), [m.victim])
    package = decode_message(taken.key_package_data)
    assert isinstance(package, KeyPackage)

    def change(group: MlsGroup) -> tuple[bytes, bytes, bytes]:
        context = replace(group._state.context, epoch=LATE)
        state = replace(group._state, public=replace(group._state.public, context=context))
        with unchecked():
            late = MlsGroup(state, LAX)
            made = late.commit(NOW, add=[package])
        return made.message, made.welcome or b"", made.group_info

    await m.invites_into_a_trap(change)


async def any_group(m: Mallory) -> UUID:
    """Return a group of Mallory's own, in which key packages can be asked for."""
    return await m.client.create_group(f"own_{uuid4().hex[:8]}")


async def trap_with_a_large_context(m: Mallory) -> None:
    [taken] = await m.client.key_packages_for(await any_group(m), [m.victim])
    package = decode_message(taken.key_package_data)
    assert isinstance(package, KeyPackage)

    def change(group: MlsGroup) -> tuple[bytes, bytes, bytes]:
        extensions = (Extension(ExtensionType.APPLICATION_ID, os.urandom(200_000)),)
        context = replace(group._state.context, extensions=extensions)
        state = replace(group._state, public=replace(group._state.public, context=context))
        with unchecked():
            made = MlsGroup(state, LAX).commit(NOW, add=[package])
        return made.message, made.welcome or b"", made.group_info

    await m.invites_into_a_trap(change)


async def trap_with_a_rubbish_welcome(m: Mallory) -> None:
    await m.invites_into_a_trap(lambda _: (b"\x00\x01rubbish", os.urandom(500), os.urandom(500)))


async def trap_with_a_welcome_for_somebody_else(m: Mallory) -> None:
    own = stranger()

    def change(group: MlsGroup) -> tuple[bytes, bytes, bytes]:
        made = group.commit(NOW, add=[own.key_package])
        body = decode_message(made.welcome or b"")
        assert isinstance(body, Welcome)
        return made.message, encode_message(replace(body, secrets=body.secrets * 1_000)), made.group_info

    await m.invites_into_a_trap(change)


def accomplices(m: Mallory, **changes: object) -> OwnKeyPackage:
    own = create_key_package(SUITE, m.accomplice.session.user_id.bytes, SUITE.signature_key_pair().private, NOW)
    return replace(own, key_package=repackaged(own, **changes)) if changes else own  # type: ignore[arg-type]


KINDS: dict[str, Kind] = {
    # Proposals
    "a key that nobody has is proposed": lambda m: m.proposes(external_psk()),
    "the key of another group is proposed": lambda m: m.proposes(resumption(b"another", 0)),
    "the key of another epoch is proposed": lambda m: m.proposes(resumption(m.group.group_id, 77)),
    "an add with a zero init key": lambda m: m.proposes(Add(repackaged(stranger(), init_key=ZERO))),
    "an add with a zero leaf key": lambda m: m.proposes(Add(repackaged(stranger(), encryption_key=ZERO))),
    "an update with a zero key": lambda m: m.proposes(m.update(encryption_key=ZERO)),
    "a large context is proposed": lambda m: m.proposes(context_with(large())),
    "a tree is proposed as a context": lambda m: m.proposes(context_with(Extension(2, b"rubbish"))),
    "the end of the group is proposed": lambda m: m.proposes(ReInit(os.urandom(16), 1, 6, ())),
    "the admin's removal is proposed": lambda m: m.proposes(Remove(m.index_of(m.victim))),
    "a member's removal is proposed": lambda m: m.proposes(Remove(m.index_of(m.other))),
    "a stranger is proposed": lambda m: m.proposes(Add(stranger().key_package)),
    "a stranger with a large leaf asks in": asks_in_with_a_large_leaf,
    "a beginning is proposed": lambda m: m.proposes(ExternalInit(os.urandom(56))),
    "a flood of updates": flood,
    "a proposal of a late epoch": lambda m: m.client.send(m.club, at_a_late_epoch(m, Remove(0))),  # type: ignore[dict-item,return-value]
    # Commits
    "the admin is removed": lambda m: m.commits(Remove(m.index_of(m.victim))),
    "the admin is removed in private": lambda m: m.commits(Remove(m.index_of(m.victim)), private=True),
    "the admin is removed, with a false group info": removes_the_victim_and_lies,
    "a member is removed": lambda m: m.commits(Remove(m.index_of(m.other))),
    "the group is ended": lambda m: m.commits(ReInit(os.urandom(16), 1, 6, ())),
    "a key of an earlier epoch flows in": lambda m: m.commits(resumption(m.group.group_id, m.group.epoch)),
    "a large context": lambda m: m.commits(context_with(large())),
    "a large leaf": commits_a_large_leaf,
    "a stranger is added": lambda m: m.commits(Add(stranger().key_package)),
    "an accomplice with a zero key": lambda m: m.commits(Add(repackaged(stranger(), encryption_key=ZERO))),
    "an identity that is no user": lambda m: m.commits(Add(repackaged(stranger(), credential=basic(b"x")))),
    "a commit of a late epoch": commits_at_a_late_epoch,
    "a commit with a wrong tag": commits_with_a_wrong_tag,
    "a commit that nobody can read": commits_for_nobody,
    "somebody comes in instead of the admin": comes_in_instead_of_the_victim,
    # Welcomes
    "a trap of a late epoch": trap_of_a_late_epoch,
    "a trap with a large context": trap_with_a_large_context,
    "a trap with a rubbish welcome": trap_with_a_rubbish_welcome,
    "a trap with a welcome for somebody else": trap_with_a_welcome_for_somebody_else,
    # Key packages
    "a key package with a zero init key": lambda m: m.publishes(
        encode_message(accomplices(m, init_key=ZERO).key_package)
    ),
    "a key package with a large leaf": lambda m: m.publishes(
        encode_message(accomplices(m, extensions=(Extension(1, os.urandom(10_000)),)).key_package)
    ),
    "a key package of the admin's": lambda m: m.publishes(
        encode_message(accomplices(m, credential=basic(m.victim.bytes)).key_package)
    ),
    "a rubbish key package": lambda m: m.publishes(encode_message(accomplices(m).key_package)[:4] + os.urandom(200)),
    # Group infos
    "a rubbish group info": lambda m: publishes_info(m, os.urandom(300)),
    "a group info of a late epoch": lambda m: publishes_info(
        m, m.info(group_context=replace(m.state.context, epoch=(1 << 64) - 2))
    ),
    "a group info of an epoch far ahead": lambda m: publishes_info(
        m, m.info(group_context=replace(m.state.context, epoch=1 << 61))
    ),
    "a group info with a zero key": lambda m: publishes_info(
        m,
        m.info(
            extensions=(
                Extension(ExtensionType.RATCHET_TREE, m.state.tree.encode()),
                Extension(ExtensionType.EXTERNAL_PUB, opaque(ZERO)),
            )
        ),
    ),
    "a large group info": lambda m: publishes_info(m, m.info(extensions=(large(ExtensionType.RATCHET_TREE),))),
    # What is nothing
    "rubbish": lambda m: m.client.send(m.club, os.urandom(400)),  # type: ignore[dict-item,return-value]
    "a message cut off": lambda m: m.client.send(m.club, m.group.copy().encrypt(b"hello")[:-9]),  # type: ignore[dict-item,return-value]
}


async def attack(mallory: Mallory, name: str) -> None:
    """Do one thing, in the epoch in which the others are."""
    await mallory.follow()
    await KINDS[name](mallory)


def series(chance: random.Random, count: int) -> list[str]:
    return [chance.choice(list(KINDS)) for _ in range(count)]
