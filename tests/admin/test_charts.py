"""Charts as numbers: what is counted into which bar, and that nothing sticks out."""

import pytest

from conclave.admin.page.charts import BOTTOM, HEIGHT, LEFT, MAX_BARS, TOP, WIDTH, DataPoint, stacked_chart

KINDS = ("expired", "deleted_group")
NOW = 1_700_000_000


def test_without_amounts_there_is_no_chart() -> None:
    assert stacked_chart([], KINDS, NOW) is None
    assert stacked_chart([DataPoint(NOW + 1, {"expired": 1})], KINDS, NOW) is None, "a clock that was ahead"


@pytest.mark.parametrize("span", [0, 59, 3600, 86_400, 30 * 86_400, 3 * 365 * 86_400])
@pytest.mark.parametrize("count", [1, 2, 47, 1000])
def test_everything_is_counted_and_lies_within_the_plane(span: int, count: int) -> None:
    amounts = [
        DataPoint(NOW - span * n // count, {"expired": n, "deleted_group": 7, "sessions": 9}) for n in range(count)
    ]
    chart = stacked_chart(amounts, KINDS, NOW)
    assert chart
    assert chart.totals == {"expired": count * (count - 1) // 2, "deleted_group": 7 * count}
    assert 1 <= len(chart.bars) <= MAX_BARS
    for bar in chart.bars:
        for piece in bar.pieces:
            assert LEFT <= piece.x < WIDTH
            assert piece.x + piece.width <= WIDTH + 1
            assert TOP <= piece.y <= piece.y + piece.height <= HEIGHT - BOTTOM + 0.1
    assert f"{7 * count:,} deleted group" in chart.text


def test_what_is_older_than_the_bars_reach_is_left_out() -> None:
    chart = stacked_chart([DataPoint(0, {"expired": 5}), DataPoint(NOW, {"expired": 1})], KINDS, 100 * 365 * 86_400)
    assert chart
    assert (chart.totals["expired"], len(chart.bars)) == (1, 1)


def test_a_run_that_erased_nothing_has_no_bar() -> None:
    chart = stacked_chart([DataPoint(NOW, {"sessions": 4})], KINDS, NOW)
    assert chart
    assert [bar.pieces for bar in chart.bars] == [[]]
    assert chart.text.endswith(" UTC: nothing.")


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 48, 401, 99_999])
@pytest.mark.parametrize("span", [0, 7_000, 86_400 * 3, 86_400 * 300])
def test_what_stands_beside_the_axes_is_round(most: int, span: int) -> None:
    """Heights at nothing, at the middle and at the top; times at most five, and those of a scale that people read."""
    chart = stacked_chart([DataPoint(NOW - span, {"expired": most}), DataPoint(NOW, {"expired": 1})], KINDS, NOW)
    assert chart
    heights = [each.text for each in chart.heights]
    assert heights[0] == "0"
    assert {each.rstrip("0kMG,") for each in heights[1:]} <= {"1", "2", "4", "5"}
    assert 1 <= len(chart.times) <= 5
    if span > 86_400:
        assert all(each.text.endswith("00:00") for each in chart.times)
