"""The official vectors of suites 1 and 6: what each chapter computes."""

from dataclasses import replace
from typing import Any

import pytest

from conclave.client.mls import hpke, tree_math
from conclave.client.mls.codec import ByteReader, decode, varint
from conclave.client.mls.crypto import (
    HPKECiphertext,
    decrypt_with_label,
    derive_secret,
    derive_tree_secret,
    encrypt_with_label,
    expand_with_label,
    ref_hash,
    sign_with_label,
    verify_with_label,
)
from conclave.client.mls.errors import MalformedMessageError
from conclave.client.mls.framing import (
    AuthenticatedContent,
    ContentType,
    FramedContent,
    FramedContentAuthData,
    PrivateMessage,
    PublicMessage,
    WireFormat,
    decode_content,
    decode_message,
    encode_content,
    encode_message,
    member,
)
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import (
    GroupContext,
    PreSharedKeyID,
    PSKType,
    confirmed_transcript_hash,
    derive_epoch,
    derive_joiner_secret,
    derive_psk_secret,
    derive_welcome_secret,
    export_secret,
    external_key_pair,
    interim_transcript_hash,
)
from conclave.client.mls.parent_hash import check_parent_hashes, with_path
from conclave.client.mls.proposals import Add, Commit, Proposal, Remove, Update, decode_proposal, encode_proposal
from conclave.client.mls.protection import (
    check_signature,
    protect_private,
    protect_public,
    sender_data_key,
    sign,
    unprotect_private,
    unprotect_public,
)
from conclave.client.mls.secret_tree import RatchetKind, SecretTree
from conclave.client.mls.suites import CipherSuite, KeyPair
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.treekem import (
    UpdatePath,
    check_path,
    decrypt_path,
    derive_path,
    encrypt_path,
    node_key,
)
from conclave.client.mls.validation import check_unmerged_leaves
from conclave.client.mls.welcome import GroupInfo, GroupSecrets, Welcome
from tests.client.mls.data import load, raw, suite
from tests.support import sample

Vector = dict[str, Any]


def each(name: str, few: int | None = None) -> pytest.MarkDecorator:
    """Run a test with each vector of a file, or with a few of them in a sample."""
    vectors = list(enumerate(load(name)))
    chosen = vectors if few is None else sample.some(vectors, few, f"vectors {name}")
    return pytest.mark.parametrize("vector", [pytest.param(one, id=f"{name}-{number}") for number, one in chosen])


@each("deserialization")
def test_lengths_are_read_as_the_vectors_say(vector: Vector) -> None:
    header = raw(vector["vlbytes_header"])
    assert decode(header, ByteReader.varint) == vector["length"]
    assert varint(vector["length"]) == header


@each("tree-math")
def test_nodes_lie_where_the_vectors_say(vector: Vector) -> None:
    n = vector["n_leaves"]
    assert tree_math.node_width(n) == vector["n_nodes"]
    assert tree_math.root(n) == vector["root"]
    for x in range(vector["n_nodes"]):
        if vector["left"][x] is not None:
            assert (tree_math.left(x), tree_math.right(x)) == (vector["left"][x], vector["right"][x])
        if vector["parent"][x] is not None and x != tree_math.root(n):
            assert (tree_math.parent(x), tree_math.sibling(x)) == (vector["parent"][x], vector["sibling"][x])


@each("crypto-basics")
def test_labels_flow_into_everything(vector: Vector) -> None:
    own = suite(vector)
    one = vector["ref_hash"]
    assert ref_hash(own, one["label"], raw(one["value"])).hex() == one["out"]
    one = vector["expand_with_label"]
    out = expand_with_label(own, raw(one["secret"]), one["label"], raw(one["context"]), one["length"])
    assert out.hex() == one["out"]
    one = vector["derive_secret"]
    assert derive_secret(own, raw(one["secret"]), one["label"]).hex() == one["out"]
    one = vector["derive_tree_secret"]
    out = derive_tree_secret(own, raw(one["secret"]), one["label"], one["generation"], one["length"])
    assert out.hex() == one["out"]


@each("crypto-basics")
def test_signatures_and_encryption_with_labels(vector: Vector) -> None:
    own, one = suite(vector), vector["sign_with_label"]
    public, content = raw(one["pub"]), raw(one["content"])
    assert own.signature.public_of(raw(one["priv"])) == public
    for signature in (raw(one["signature"]), sign_with_label(own, raw(one["priv"]), one["label"], content)):
        assert verify_with_label(own, public, one["label"], content, signature)
        assert not verify_with_label(own, public, one["label"] + "x", content, signature)
    one = vector["encrypt_with_label"]
    keys, context = KeyPair(raw(one["priv"]), raw(one["pub"])), raw(one["context"])
    theirs = HPKECiphertext(raw(one["kem_output"]), raw(one["ciphertext"]))
    ours = encrypt_with_label(own, keys.public, one["label"], context, raw(one["plaintext"]))
    for encrypted in (theirs, ours):
        assert decrypt_with_label(own, keys, one["label"], context, encrypted).hex() == one["plaintext"]


@each("key-schedule")
def test_epochs_follow_from_each_other(vector: Vector) -> None:
    own, init_secret = suite(vector), raw(vector["initial_init_secret"])
    for number, epoch in enumerate(vector["epochs"]):
        hashes = raw(epoch["tree_hash"]), raw(epoch["confirmed_transcript_hash"])
        context = GroupContext(own.number, raw(vector["group_id"]), number, *hashes).encode()
        assert context.hex() == epoch["group_context"]
        joiner = derive_joiner_secret(own, init_secret, raw(epoch["commit_secret"]), context)
        schedule = derive_epoch(own, joiner, raw(epoch["psk_secret"]), context)
        found = {**vars(schedule.secrets), **vars(schedule)}
        for name, value in found.items():
            if isinstance(value, bytes):
                assert value.hex() == epoch[name], name
        assert external_key_pair(own, schedule.secrets).public.hex() == epoch["external_pub"]
        one = epoch["exporter"]
        secret = export_secret(own, schedule.secrets, one["label"], raw(one["context"]), one["length"])
        assert secret.hex() == one["secret"]
        init_secret = schedule.secrets.init_secret


@each("psk_secret")
def test_pre_shared_keys_flow_together(vector: Vector) -> None:
    psks = [
        (PreSharedKeyID(PSKType.EXTERNAL, raw(one["psk_nonce"]), raw(one["psk_id"])), raw(one["psk"]))
        for one in vector["psks"]
    ]
    assert derive_psk_secret(suite(vector), psks).hex() == vector["psk_secret"]


@each("transcript-hashes")
def test_transcripts_go_on(vector: Vector) -> None:
    own = suite(vector)
    authenticated = decode(raw(vector["authenticated_content"]), AuthenticatedContent.decode)
    assert isinstance(authenticated.content.content, Commit)
    before = raw(vector["interim_transcript_hash_before"])
    confirmed = confirmed_transcript_hash(own, before, authenticated.confirmed_input())
    assert confirmed.hex() == vector["confirmed_transcript_hash_after"]
    tag = own.mac(raw(vector["confirmation_key"]), confirmed)
    assert authenticated.auth.confirmation_tag == tag
    assert interim_transcript_hash(own, confirmed, tag).hex() == vector["interim_transcript_hash_after"]


@each("secret-tree")
def test_every_message_has_its_key(vector: Vector) -> None:
    own, one = suite(vector), vector["sender_data"]
    keys = sender_data_key(own, raw(one["sender_data_secret"]), raw(one["ciphertext"]))
    assert [key.hex() for key in keys] == [one["key"], one["nonce"]]
    tree = SecretTree.create(own, len(vector["leaves"]), raw(vector["encryption_secret"]))
    for leaf_index, generations in enumerate(vector["leaves"]):
        for expected in generations:
            for kind in RatchetKind:
                key, tree = tree.take(leaf_index, kind, expected["generation"])
                name = kind.name.lower()
                assert (key.key.hex(), key.nonce.hex()) == (expected[f"{name}_key"], expected[f"{name}_nonce"])


@each("message-protection")
@pytest.mark.parametrize("what", ["proposal", "commit", "application"])
def test_messages_are_protected_and_unprotected(vector: Vector, what: str) -> None:
    own = suite(vector)
    hashes = raw(vector["tree_hash"]), raw(vector["confirmed_transcript_hash"])
    context = GroupContext(own.number, raw(vector["group_id"]), vector["epoch"], *hashes)
    tree = SecretTree.create(own, 2, raw(vector["encryption_secret"]))
    sender_data, membership = raw(vector["sender_data_secret"]), raw(vector["membership_key"])

    def content_of(message: bytes) -> str:
        body = decode_message(message)
        if isinstance(body, PrivateMessage):
            found, _ = unprotect_private(own, body, tree, sender_data, 0, range(2).__contains__)
        else:
            assert isinstance(body, PublicMessage)
            found = unprotect_public(own, body, membership, context.encode())
        check_signature(own, found, raw(vector["signature_pub"]), context.encode())
        plain = found.content.content
        return plain.hex() if isinstance(plain, bytes) else encode_content(plain).hex()

    def made(wire_format: WireFormat) -> AuthenticatedContent:
        kind = ContentType[what.upper()]
        plain = raw(vector[what])
        said = plain if what == "application" else decode(plain, lambda reader: decode_content(reader, kind))
        framed = FramedContent(context.group_id, context.epoch, member(1), b"", said)
        signature = sign(own, wire_format, framed, raw(vector["signature_priv"]), context.encode())
        tag = b"tag" if what == "commit" else None
        return AuthenticatedContent(wire_format, framed, FramedContentAuthData(signature, tag))

    assert content_of(raw(vector[f"{what}_priv"])) == vector[what]
    private, _ = protect_private(own, made(WireFormat.PRIVATE_MESSAGE), tree, sender_data)
    assert content_of(encode_message(private)) == vector[what]
    if what == "application":
        with pytest.raises(MalformedMessageError):
            protect_public(own, made(WireFormat.PUBLIC_MESSAGE), membership, context.encode())
        return
    assert content_of(raw(vector[f"{what}_pub"])) == vector[what]
    public = protect_public(own, made(WireFormat.PUBLIC_MESSAGE), membership, context.encode())
    assert content_of(encode_message(public)) == vector[what]


@each("welcome")
def test_a_welcome_opens(vector: Vector) -> None:
    own = suite(vector)
    key_package, welcome = decode_message(raw(vector["key_package"])), decode_message(raw(vector["welcome"]))
    assert isinstance(key_package, KeyPackage)
    assert isinstance(welcome, Welcome)
    entry = next(one for one in welcome.secrets if one.new_member == key_package.ref())
    keys = KeyPair(raw(vector["init_priv"]), key_package.init_key)
    context, encrypted = welcome.encrypted_group_info, entry.encrypted_group_secrets
    secrets = decode(decrypt_with_label(own, keys, "Welcome", context, encrypted), GroupSecrets.decode)
    none = bytes(own.kdf.size)
    info = welcome.group_info(own, derive_welcome_secret(own, secrets.joiner_secret, none))
    assert verify_with_label(own, raw(vector["signer_pub"]), "GroupInfoTBS", info.to_be_signed(), info.signature)
    schedule = derive_epoch(own, secrets.joiner_secret, none, info.group_context.encode())
    confirmed = info.group_context.confirmed_transcript_hash
    assert own.mac(schedule.secrets.confirmation_key, confirmed) == info.confirmation_tag


def read_tree(own: CipherSuite, text: str) -> RatchetTree:
    return decode(raw(text), lambda reader: RatchetTree.decode(own, reader))


def changed(tree: RatchetTree, proposal: Proposal, sender: int) -> RatchetTree:
    if isinstance(proposal, Add):
        return tree.added(proposal.key_package.leaf_node)[0]
    if isinstance(proposal, Update):
        return tree.updated(sender, proposal.leaf_node)
    assert isinstance(proposal, Remove)
    return tree.removed(proposal.removed).truncated()


@each("tree-operations")
def test_proposals_change_trees(vector: Vector) -> None:
    own = suite(vector)
    tree = read_tree(own, vector["tree_before"])
    assert tree.tree_hash().hex() == vector["tree_hash_before"]
    after = changed(tree, decode(raw(vector["proposal"]), decode_proposal), vector["proposal_sender"])
    assert after.encode().hex() == vector["tree_after"]
    assert after.tree_hash().hex() == vector["tree_hash_after"]
    assert read_tree(own, vector["tree_after"]) == after


@each("tree-validation")
def test_valid_trees_are_valid(vector: Vector) -> None:
    own = suite(vector)
    tree = read_tree(own, vector["tree"])
    assert [tree.resolution(x) for x in range(len(tree.nodes))] == vector["resolutions"]
    assert [tree.tree_hash(x).hex() for x in range(len(tree.nodes))] == vector["tree_hashes"]
    check_parent_hashes(tree)
    check_unmerged_leaves(tree)
    for leaf_index, leaf in tree.leaves():
        assert leaf.is_signed(own, raw(vector["group_id"]), leaf_index)


def private_keys(own: CipherSuite, tree: RatchetTree, leaf: Vector) -> dict[int, bytes]:
    keys = {2 * leaf["index"]: KeyPair(raw(leaf["encryption_priv"]), b"")}
    keys |= {one["node"]: node_key(own, raw(one["path_secret"])) for one in leaf["path_secrets"]}
    for x, pair in keys.items():
        node = tree.nodes[x]
        assert node is not None
        assert own.kem.public_of(pair.private) == node.encryption_key
    return {x: pair.private for x, pair in keys.items()}


@each("treekem", few=8)
def test_paths_are_read_and_made(vector: Vector) -> None:
    own = suite(vector)
    tree = read_tree(own, vector["ratchet_tree"])
    keys = {leaf["index"]: private_keys(own, tree, leaf) for leaf in vector["leaves_private"]}
    signing = {leaf["index"]: raw(leaf["signature_priv"]) for leaf in vector["leaves_private"]}
    base = GroupContext(
        own.number, raw(vector["group_id"]), vector["epoch"], b"", raw(vector["confirmed_transcript_hash"])
    )
    for entry in sample.some(vector["update_paths"], 3, "paths"):
        sender, path = entry["sender"], decode(raw(entry["update_path"]), UpdatePath.decode)
        check_path(tree, sender, path, ())
        filtered = [x for x, _ in tree.filtered_direct_path(sender)]
        public = dict(zip(filtered, (node.encryption_key for node in path.nodes), strict=True))
        after, parent_hash = with_path(tree, sender, public)
        assert path.leaf_node.parent_hash == parent_hash
        after = after.with_nodes({2 * sender: path.leaf_node})
        assert after.tree_hash().hex() == entry["tree_hash_after"]
        context = replace(base, tree_hash=after.tree_hash()).encode()
        for reader, expected in enumerate(entry["path_secrets"]):
            if expected is not None:
                found = decrypt_path(after, sender, path, (), reader, keys[reader], context)
                assert next(iter(found.secrets.values())).hex() == expected
                assert found.commit_secret.hex() == entry["commit_secret"]
        own_path = derive_path(own, filtered, b"a secret".ljust(own.kdf.size))
        ours, _ = with_path(tree, sender, own_path.public_keys)
        leaf = replace(path.leaf_node, encryption_key=hpke.generate_key_pair(own).public)
        leaf = leaf.signed(own, signing[sender], base.group_id, sender)
        ours = ours.with_nodes({2 * sender: leaf})
        made = UpdatePath(leaf, encrypt_path(ours, sender, own_path, (), context))
        for reader in keys.keys() - {sender}:
            found = decrypt_path(ours, sender, made, (), reader, keys[reader], context)
            assert found.commit_secret == own_path.commit_secret


MESSAGES = ("mls_welcome", "mls_group_info", "mls_key_package", "public_message_proposal", "public_message_commit")
PROPOSALS = (
    *("add", "update", "remove", "pre_shared_key", "re_init", "external_init"),
    "group_context_extensions",
)


@each("messages", few=10)
def test_messages_are_encoded_as_they_were_decoded(vector: Vector) -> None:
    for name in (*MESSAGES, "public_message_application", "private_message"):
        assert encode_message(decode_message(raw(vector[name]))).hex() == vector[name], name
    assert isinstance(decode_message(raw(vector["mls_group_info"])), GroupInfo)
    for number, name in enumerate(PROPOSALS, start=1):
        data = number.to_bytes(2, "big") + raw(vector[f"{name}_proposal"])
        assert encode_proposal(decode(data, decode_proposal)) == data, name
    assert decode(raw(vector["commit"]), Commit.decode).encode().hex() == vector["commit"]
    assert decode(raw(vector["group_secrets"]), GroupSecrets.decode).encode().hex() == vector["group_secrets"]
