"""The format of an answer: the table of rules, one row a rule."""

import pytest

from conclave.auth.tokens import new_token
from conclave.wire.formats import Format, body_format, response_format

JSON, PROTOBUF = Format.JSON, Format.PROTOBUF
J, P = JSON.value, PROTOBUF.value
EVEN, ODD = "0" * 62 + "1e", "0" * 62 + "2f"

RULES = [
    # Accept, Content-Type, token, answer
    pytest.param("", "", "", JSON, id="nothing decides: JSON"),
    pytest.param(J, P, ODD, JSON, id="an Accept of one type comes first"),
    pytest.param(P, J, EVEN, PROTOBUF, id="an Accept of the other type comes first"),
    pytest.param(f"text/html, {P};q=0.1, */*", J, EVEN, PROTOBUF, id="other types beside it do not matter"),
    pytest.param("APPLICATION/X-Protobuf ; v=1", J, EVEN, PROTOBUF, id="case and parameters do not matter"),
    pytest.param(f"{P},{P}", J, EVEN, PROTOBUF, id="a type named twice is one type"),
    pytest.param(f"{J}, {P}", P, EVEN, PROTOBUF, id="an Accept of both does not decide"),
    pytest.param(f"{J};q=0.9, {P};q=0.1", P, EVEN, PROTOBUF, id="nor by its weights"),
    pytest.param(f"{J};q=0, {P}", J, EVEN, PROTOBUF, id="a weight of 0 does not name a type"),
    pytest.param(f"{P};q=0.000", "", "", JSON, id="nor 0 with decimals"),
    pytest.param("*/*", P, EVEN, PROTOBUF, id="*/* does not decide, then Content-Type does"),
    pytest.param("application/*", J, ODD, JSON, id="nor does application/*"),
    pytest.param("text/html", P, EVEN, PROTOBUF, id="nor does an Accept of neither"),
    pytest.param(
        "", "application/JSON; charset=utf-8", ODD, JSON, id="case and parameters of Content-Type do not matter"
    ),
    pytest.param("", "text/plain", ODD, PROTOBUF, id="another Content-Type does not decide, then the token does"),
    pytest.param("*/*", "", ODD, PROTOBUF, id="an odd token is a protobuf client's"),
    pytest.param("*/*", "", EVEN, JSON, id="an even token is a JSON client's"),
    pytest.param("*/*", "", "unknown and short: 7", PROTOBUF, id="a token need not be known, nor look like one"),
    pytest.param("*/*", "", "BAD", PROTOBUF, id="upper-case digits are digits"),
    pytest.param("", "", "xyz", JSON, id="a token that does not end in a hex digit does not decide"),
    pytest.param("", "", "\u0663", JSON, id="nor one in a digit of another script"),
]


@pytest.mark.parametrize(("accept", "content_type", "token", "expected"), RULES)
def test_the_format_of_an_answer(accept: str, content_type: str, token: str, expected: Format) -> None:
    assert response_format(accept, content_type, token) is expected


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (J, JSON),
        (P, PROTOBUF),
        ("Application/X-PROTOBUF;x=y", PROTOBUF),
        (" application/json ; charset=utf-8", JSON),
        ("", None),
        (";", None),
        ("text/plain", None),
        ("application/protobuf", None),
        ("application/jsonx", None),
    ],
)
def test_the_format_of_a_body(content_type: str, expected: Format | None) -> None:
    assert body_format(content_type) is expected


@pytest.mark.parametrize("issued_in", Format)
def test_a_token_remembers_the_format_it_was_issued_in(issued_in: Format) -> None:
    tokens = {new_token(issued_in) for _ in range(100)}
    assert len(tokens) == 100
    assert len({token[-1] for token in tokens}) > 1
    for token in tokens:
        assert len(bytes.fromhex(token)) == 32
        assert response_format("*/*", "", token) is issued_in
