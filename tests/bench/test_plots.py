"""Plots show every point, and are SVG."""

from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from bench.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, lines, over_time

SVG = "{http://www.w3.org/2000/svg}"
VALUES = st.floats(1e-6, 1e12)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.booleans(), st.booleans())
def test_every_point_lies_between_the_axes(points: list[tuple[float, float]], across: bool, up: bool) -> None:
    plot = lines("a title", Axis("across", is_log=across), Axis("up", is_log=up), {"a": points})
    circles = list(ElementTree.fromstring(plot).iter(f"{SVG}circle"))
    assert len(circles) == len(points)
    for each in circles:
        assert LEFT <= float(each.get("cx", "")) <= WIDTH - RIGHT
        assert TOP <= float(each.get("cy", "")) <= HEIGHT - BOTTOM


@pytest.mark.parametrize("is_log", [True, False])
def test_an_axis_has_few_marks(is_log: bool) -> None:
    for most in (0.9, 1, 1.1, 47, 1_000, 123_456):
        root = ElementTree.fromstring(lines("", Axis(""), Axis("", is_log=is_log), {"a": [(0, 0.5), (1, most)]}))
        marks = [each.text for each in root.iter(f"{SVG}text") if each.get("text-anchor") == "end"]
        assert 2 <= len(marks) == len(set(marks)) <= 13


def test_what_is_named_is_escaped() -> None:
    root = ElementTree.fromstring(lines("a < b", Axis("&"), Axis(">"), {"<a & b>": [(0, 0)]}))
    assert {"a < b", "&", ">", "<a & b>"} <= {each.text for each in root.iter(f"{SVG}text")}


def test_what_goes_on_beside_points_is_shaded_and_dots_on_each_other_are_one() -> None:
    root = ElementTree.fromstring(over_time("", Axis("ms"), {"a": [(0, 1), (0, 1), (10, 2)]}, shaded=(5, 10)))
    [shade] = [each for each in root.iter(f"{SVG}rect") if each.get("opacity")]
    assert float(shade.get("width", "")) == pytest.approx((WIDTH - LEFT - RIGHT) / 2, abs=0.1)
    [dots] = [each.get("d", "") for each in root.iter(f"{SVG}path") if each.get("stroke-linecap")]
    assert dots.count("M") == 2


def test_names_that_need_more_than_a_row_stay_in_the_picture_and_above_the_lines() -> None:
    names = ["restore of a group", "page of 100 from anywhere, p95", "first backup", "another backup", "verify"]
    root = ElementTree.fromstring(lines("", Axis(""), Axis(""), {name: [(0, 1)] for name in names}))
    places = {each.text: (float(each.get("x", "")), float(each.get("y", ""))) for each in root.iter(f"{SVG}text")}
    shown = [places[name] for name in names]
    assert len({*shown}) == len(names)
    for name, (across, up) in zip(names, shown, strict=True):
        assert LEFT <= across <= across + 7 * len(name) <= WIDTH
        assert 24 < up <= TOP
