"""Where a request comes from."""

import pytest

from conclave.config.addresses import UNKNOWN, covers_internet, origin, parse_network

TRUSTED = [parse_network(text) for text in ("10.0.0.0/8", "127.0.0.1", "fd00::/8", "::ffff:192.168.0.0/112")]


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_an_address_of_ipv4_counts_whole_and_one_of_ipv6_by_its_network(peer: str | None, counted: str) -> None:
    assert origin(peer, [], TRUSTED) == counted


@pytest.mark.parametrize("peer", ["203.0.113.7", "2001:db8::7", None])
def test_what_an_untrusted_peer_says_of_others_is_ignored(peer: str | None) -> None:
    assert origin(peer, ["198.51.100.1"], TRUSTED) == origin(peer, [], TRUSTED)


@pytest.mark.parametrize(
    ("forwarded", "counted"),
    [
        ([], "10.0.0.1"),
        (["198.51.100.1"], "198.51.100.1"),
        (["192.0.2.66, 198.51.100.1"], "198.51.100.1"),  # the first is what the client wrote itself
        (["192.0.2.66, 198.51.100.1, 10.9.9.9,127.0.0.1"], "198.51.100.1"),
        (["192.0.2.66", "198.51.100.1, 10.9.9.9", "fd00::1"], "198.51.100.1"),
        (["198.51.100.1, ::ffff:10.9.9.9"], "198.51.100.1"),
        (["198.51.100.1, 192.168.3.4"], "198.51.100.1"),
        (["198.51.100.1:4711"], "198.51.100.1"),
        (["2001:db8::1"], "2001:db8::/64"),
        (["[2001:db8::1]"], "2001:db8::/64"),
        (["[2001:db8::1]:4711"], "2001:db8::/64"),
        (["::ffff:198.51.100.1"], "198.51.100.1"),
        (["10.7.7.7, 10.8.8.8"], "10.7.7.7"),
        (["198.51.100.1, unknown"], "10.0.0.1"),
        (["198.51.100.1, 10.2.2.2:port, 10.9.9.9"], "10.9.9.9"),
        (["198.51.100.1,"], "10.0.0.1"),
        (["198.51.100.1, , 10.9.9.9"], "10.9.9.9"),
        (["[]:1, 10.9.9.9"], "10.9.9.9"),
        (["[198.51.100.1"], "10.0.0.1"),
        (["\u0661.1.1.1"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        (["198.51.100.1" + ", 10.2.2.2" * 31], "198.51.100.1"),
        (["198.51.100.1" + ", 10.2.2.2" * 32], "10.2.2.2"),  # further ones are not looked at
    ],
)
@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_a_trusted_proxy_tells_where_a_request_comes_from(peer: str, forwarded: list[str], counted: str) -> None:
    assert origin(peer, forwarded, TRUSTED) == counted


@pytest.mark.parametrize("text", ["", "proxy", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8/8", "1.2.3", "::1::"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_network(text)


@pytest.mark.parametrize(
    ("networks", "covers"),
    [
        ([], False),
        (["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"], False),
        (["0.0.0.0/0"], True),
        (["::/0"], True),
        (["2000::/3"], True),
        (["0.0.0.0/1", "128.0.0.0/1"], True),
        ([f"{first}.0.0.0/8" for first in range(128)], True),
        ([f"{first}.0.0.0/8" for first in range(127)], False),
        (["10.0.0.0/8"] * 200, False),
        (["::ffff:0:0/96"], True),
    ],
)
def test_networks_that_are_half_of_the_internet_are_told(networks: list[str], covers: bool) -> None:
    assert covers_internet(map(parse_network, networks)) is covers
