"""Shades: pieces that cover what they were cut from, darker where more ran."""

import itertools
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.report.comparison_page import FAINTEST, shaded
from tailrace.report.fold.loads import Loads
from tailrace.report.fold.timeline import Doing, Span


def loads(running):
    """What a replica had until the seconds 1, 2, 3 and so on."""
    held = {"r0": 0}
    found = Loads(SimpleNamespace(version=0, held=held.get, serves=lambda replica: 0))  # type: ignore[arg-type]
    found.watch(["r0"], ["r0"])
    for second, count in enumerate(running):
        held["r0"] = count
        found.hears[c.Route](float(second), c.Route(1, "r0", ()))
        found.settle(float(second))
        found.hears[c.Tick](second + 1.0, c.Tick())
    found.close()
    return found


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.floats(0, 30, allow_subnormal=False),
    st.floats(0.01, 30, allow_subnormal=False),
)
def test_the_pieces_follow_each_other_from_begin_to_end(running, start_s, length_s):
    span = Span("replica", "r0", Doing.GENERATING, start_s, start_s + length_s, "")
    pieces, opacity = shaded([span], loads(running))
    assert pieces[0].start_s == span.start_s
    assert pieces[-1].end_s == span.end_s
    assert all(before.end_s == after.start_s for before, after in itertools.pairwise(pieces))
    assert all(piece.start_s < piece.end_s for piece in pieces)
    assert all(FAINTEST < shade <= 1 for shade in opacity.values())


def test_it_is_darker_where_more_runs():
    span = Span("replica", "r0", Doing.GENERATING, 0.0, 4.0, "")
    pieces, opacity = shaded([span], loads([12, 12, 6, 1]))
    assert [(piece.start_s, piece.end_s) for piece in pieces] == [(0.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    shades = [opacity[piece] for piece in pieces]
    assert shades == sorted(shades, reverse=True)
    assert round(shades[0], 6) == 1.0


def test_what_is_no_generation_is_left_alone():
    spans = [Span("replica", "r0", Doing.IDLE, 0.0, 4.0, ""), Span("trainer", "0", Doing.TRAINING, 0.0, 4.0, "")]
    assert shaded(spans, loads([1, 2, 3])) == (spans, {})
