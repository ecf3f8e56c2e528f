"""A member who does not go by the rules: it signs, tags and encrypts properly whatever a test wants it to say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from conclave.client.mls import KeyPackage, MlsError, MlsGroup, OwnKeyPackage, Policy, create_key_package, suite_of
from conclave.client.mls.commits import CommitInputs, CommitSpec, create_commit, create_path
from conclave.client.mls.credentials import Extension
from conclave.client.mls.framing import (
    AuthenticatedContent,
    Content,
    FramedContent,
    FramedContentAuthData,
    Sender,
    WireFormat,
    encode_message,
    member,
)
from conclave.client.mls.key_schedule import GroupContext
from conclave.client.mls.proposal_lists import CommittedProposal, apply
from conclave.client.mls.proposals import Commit, Proposal, ProposalOrRef
from conclave.client.mls.protection import protect_private, protect_public, sign
from conclave.client.mls.state import GroupState
from conclave.client.mls.treekem import UpdatePath
from tests.client.mls.data import NOW

SUITE = suite_of(1)
AROUND = CommitInputs(Policy(), NOW, {})
NAMES = ("alice", "bob", "carol", "dave")


def package(name: str, **options: bool) -> OwnKeyPackage:
    return create_key_package(SUITE, name.encode(), SUITE.signature_key_pair().private, NOW, **options)


@dataclass
class Cast:
    """Alice, Bob, Carol and Dave in one group; each call gives them anew."""

    stored: dict[str, bytes]

    def group(self, name: str, policy: Policy | None = None) -> MlsGroup:
        return MlsGroup.from_bytes(self.stored[name], policy)

    def state(self, name: str) -> GroupState:
        return self.group(name)._state


def cast(extensions: Sequence[Extension] = ()) -> Cast:
    alice = MlsGroup.create(package("alice"), NOW, extensions=extensions)
    owns = [package(name) for name in NAMES[1:]]
    made = alice.commit(NOW, add=[own.key_package for own in owns])
    alice.receive(made.message, NOW)
    assert made.welcome is not None
    groups = {
        "alice": alice,
        **{n: MlsGroup.join(made.welcome, [o], NOW)[0] for n, o in zip(NAMES[1:], owns, strict=True)},
    }
    renewed = groups["bob"].commit(NOW)
    for group in groups.values():
        group.receive(renewed.message, NOW)
    return Cast({name: group.to_bytes() for name, group in groups.items()})


def authenticated(
    state: GroupState,
    content: Content,
    *,
    sender: Sender | None = None,
    private: bytes | None = None,
    wire_format: WireFormat = WireFormat.PUBLIC_MESSAGE,
    context: GroupContext | None = None,
    tag: bytes = b"no tag",
) -> AuthenticatedContent:
    """Sign ``content`` as that member, or as whoever is given."""
    context = context or state.context
    sender = sender or member(state.own_index)
    framed = FramedContent(context.group_id, context.epoch, sender, b"", content)
    key = private or state.signature_private
    signature = sign(state.suite, wire_format, framed, key, context.encode())
    tagged = tag if isinstance(content, Commit) else None
    return AuthenticatedContent(wire_format, framed, FramedContentAuthData(signature, tagged))


def public(state: GroupState, said: AuthenticatedContent) -> bytes:
    """Send as a public message, with the membership tag."""
    message = protect_public(state.suite, said, state.secrets.membership_key, state.context.encode())
    return encode_message(message)


def private_message(state: GroupState, said: AuthenticatedContent) -> bytes:
    message, _ = protect_private(state.suite, said, state.secret_tree, state.secrets.sender_data_secret)
    return encode_message(message)


def renewal(state: GroupState) -> tuple[AuthenticatedContent, UpdatePath]:
    """Return a proper commit without proposals, and its path."""
    made = create_commit(state, CommitSpec(), AROUND)
    commit = made.authenticated.content.content
    assert isinstance(commit, Commit)
    assert commit.path is not None
    return made.authenticated, commit.path


def path_after(state: GroupState, *committed: CommittedProposal) -> UpdatePath:
    """Return a path that is proper after those proposals, which only together are not."""
    applied = apply(state.public, committed, AROUND.policy, NOW)
    leaf = state.tree.member(state.own_index)
    return create_path(state.public, applied, state.own_index, leaf, state.signature_private)[0]


def commit_of(state: GroupState, *entries: Proposal | bytes, path: UpdatePath | None = None) -> bytes:
    """Commit to whatever is given, with a proper path unless one is given."""
    path = path or renewal(state)[1]
    return public(state, authenticated(state, Commit(tuple(map(ProposalOrRef, entries)), path)))


def with_leaf(state: GroupState, path: UpdatePath, **changes: object) -> UpdatePath:
    """Return a path whose leaf says something else, signed again."""
    leaf = replace(path.leaf_node, **changes)  # type: ignore[arg-type]
    leaf = leaf.signed(state.suite, state.signature_private, state.context.group_id, state.own_index)
    return replace(path, leaf_node=leaf)


def repackaged(own: OwnKeyPackage, **changes: object) -> KeyPackage:
    """Return a key package whose leaf says something else, both signed again."""
    leaf = replace(own.key_package.leaf_node, **changes).signed(SUITE, own.signature_private)  # type: ignore[arg-type]
    return replace(own.key_package, leaf_node=leaf).signed(own.signature_private)


def refused(group: MlsGroup, message: bytes, sentence: str, kind: type[MlsError] = MlsError) -> None:
    """Check that a message is refused for that reason, and leaves no trace."""
    unchanged(group, lambda: group.receive(message, NOW), sentence, kind)


def unchanged(group: MlsGroup, call: Callable[[], object], sentence: str, kind: type[MlsError] = MlsError) -> None:
    """Check that a call fails for that reason, and leaves no trace."""
    before = group.to_bytes()
    with pytest.raises(kind, match=sentence):
        call()
    assert group.to_bytes() == before
