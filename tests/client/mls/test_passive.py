"""A member that only follows: official scenarios, and those of mls-rs with application messages in them."""

from typing import Any

import pytest

from conclave.client.mls import ApplicationMessage, KeyPackage, MlsGroup, OwnKeyPackage, Policy, decode_message
from tests.client.mls.data import LENIENT, NOW, load, raw
from tests.support import sample

OFFICIAL = ("passive-client-welcome", "passive-client-handling-commit", "passive-client-random")
MLS_RS = ("by-reference", "everything", "external", "growth", "no-path", "private")
FEW = 10
"""Epochs of a scenario that a sample follows."""


def own_key_package(scenario: dict[str, Any]) -> OwnKeyPackage:
    key_package = decode_message(raw(scenario["key_package"]))
    assert isinstance(key_package, KeyPackage)
    keys = (raw(scenario[name]) for name in ("init_priv", "encryption_priv", "signature_priv"))
    own = OwnKeyPackage(key_package, *keys)
    suite = own.suite
    assert suite.kem.public_of(own.init_private) == key_package.init_key
    assert suite.kem.public_of(own.encryption_private) == key_package.leaf_node.encryption_key
    assert suite.signature.public_of(own.signature_private) == key_package.leaf_node.signature_key
    return own


def joined(scenario: dict[str, Any], policy: Policy = LENIENT) -> tuple[MlsGroup, dict[bytes, bytes]]:
    psks = {raw(one["psk_id"]): raw(one["psk"]) for one in scenario["external_psks"]}
    tree = raw(scenario["ratchet_tree"]) if scenario["ratchet_tree"] else None
    own = own_key_package(scenario)
    group, used = MlsGroup.join(raw(scenario["welcome"]), [own], NOW, tree=tree, psks=psks, policy=policy)
    assert used is own
    assert group.epoch_authenticator.hex() == scenario["initial_epoch_authenticator"]
    return group, psks


def follow(group: MlsGroup, epoch: dict[str, Any], psks: dict[bytes, bytes]) -> None:
    for message in (*epoch["proposals"], epoch["commit"]):
        group.receive(raw(message), NOW, psks)
    assert group.epoch_authenticator.hex() == epoch["epoch_authenticator"]
    for one in epoch.get("application", ()):
        got = group.receive(raw(one["message"]), NOW)
        assert isinstance(got, ApplicationMessage)
        assert (got.data.hex(), got.authenticated_data.hex()) == (one["plaintext"], one["authenticated_data"])
        assert (got.sender.leaf_index, got.epoch) == (one["sender"], one["epoch"])
    if "members" in epoch:
        assert (list(group.members()), group.tree_hash.hex()) == (epoch["members"], epoch["tree_hash"])


def scenarios(*names: str) -> list[Any]:
    found = [(name, number) for name in names for number in range(len(load(name)))]
    return [pytest.param(name, number, id=f"{name}-{number}") for name, number in found]


@pytest.mark.parametrize(("name", "number"), sample.some(scenarios(*OFFICIAL), 16, "official scenarios"))
def test_official_scenarios_are_followed(name: str, number: int) -> None:
    scenario = load(name)[number]
    group, psks = joined(scenario)
    for epoch in scenario["epochs"][: sample.amount(len(scenario["epochs"]), FEW)]:
        follow(group, epoch, psks)


@pytest.mark.parametrize("name", MLS_RS)
def test_scenarios_of_existing_clients_are_followed(name: str) -> None:
    (scenario,) = load(f"mls-rs-suite6-{name}")
    group, psks = joined(scenario)
    assert group.own_index == scenario["own_index"]
    for epoch in scenario["epochs"][: sample.amount(len(scenario["epochs"]), FEW)]:
        follow(group, epoch, psks)
        stored = group.to_bytes()
        group = MlsGroup.from_bytes(stored, LENIENT)
        assert group.to_bytes() == stored
