"""The adaptive timeout, beside the formula of the paper worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.reward import AdaptiveTimeout, Anchors, SettingsError

SECONDS = st.floats(0.001, 1000)


@pytest.mark.parametrize(
    ("anchor_s", "timeout_s"),
    [(None, 30.0), (0.0, 2.0), (1.0, 2.0), (4.0, 6.0), (19.0, 28.5), (20.0, 30.0), (99.0, 30.0)],
)
def test_the_formula_with_the_papers_numbers(anchor_s, timeout_s):
    assert AdaptiveTimeout().timeout_s(anchor_s) == timeout_s


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_it_stays_between_its_limits_and_never_below_a_right_run(least, more, factor, anchor_s):
    rule = AdaptiveTimeout(least, least + more, factor)
    found = rule.timeout_s(anchor_s)
    assert least <= found <= least + more
    assert found >= min(factor * anchor_s, least + more)
    assert rule.timeout_s(None) == least + more


def test_an_anchor_only_grows_and_a_right_run_counts_more_than_the_reference():
    anchors = Anchors()
    assert anchors.get("a") is None
    assert anchors.get("a", 5.0) == 5.0
    for seconds, expected in ((1.0, 1.0), (3.0, 3.0), (2.0, 3.0)):
        anchors.right("a", seconds)
        assert anchors.get("a", 5.0) == expected
    assert anchors.get("b", 5.0) == 5.0


@pytest.mark.parametrize("numbers", [(3.0, 2.0, 1.5), (0.0, 2.0, 1.5), (1.0, float("inf"), 1.5), (1.0, 2.0, -1.0)])
def test_settings_that_cannot_be_are_refused(numbers):
    with pytest.raises(SettingsError, match="expected"):
        AdaptiveTimeout(*numbers)
