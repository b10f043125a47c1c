"""Drawings: well-formed, about what happened, over the right stretch of time, and no larger than a page."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.picture.compare import Compared, compare_svg, drawn_alike
from tailrace.fleetsim.picture.figures import simulated
from tailrace.fleetsim.picture.scene import before_the_drain, last_steps, scene
from tailrace.fleetsim.picture.timeline_svg import LEFT, RIGHT, WIDTH, nice_ticks, timeline_svg
from tailrace.pipeline.run.reporting.folds import evenly
from tailrace.pipeline.run.timeline import Doing, Span

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text):
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return root


def words(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def colored(root, color):
    """Pixels from left to right that a colour takes, over all rows."""
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == f"var(--{color})" and not rect.get("rx")]
    return sum(float(rect.get("width")) for rect in rects)


def test_the_trainers_row_shows_its_share_of_training(laminar):
    shown = scene(laminar)
    begin_s, end_s = shown.shown_s
    root = drawn(timeline_svg([shown], "a title"))
    training_s = sum(
        max(0.0, min(span.end_s, end_s) - max(span.start_s, begin_s))
        for span in laminar.folds.timeline.spans
        if span.doing is Doing.TRAINING
    )
    pixels = colored(root, "training") / (WIDTH - LEFT - RIGHT)
    assert pixels == pytest.approx(training_s / (end_s - begin_s), abs=0.01)


def test_a_drawing_names_members_steps_and_what_its_colours_mean(laminar):
    root = drawn(timeline_svg([scene(laminar)], "a title"))
    said = words(root)
    assert {"laminar", "trainer", "r0", "r3", "busy", "training", "waiting for a batch"} <= set(said)
    assert any(text.startswith("v") and text[1:].isdigit() for text in said)
    assert "Qwen2.5-7B: 4 x H800 train, 4 x H800 generate (4 replicas)" in said
    assert root.find(f"{SVG}title").text == "a title"
    unknown = set(re.findall(r"var\(--([a-z-]+)\)", ElementTree.tostring(root, encoding="unicode")))
    defined = set(re.findall(r"--([a-z0-9-]+):", root.find(f"{SVG}style").text))
    assert unknown <= defined


def test_text_is_only_text(laminar):
    evil = '</text><script>alert("x")</script>&'
    root = drawn(timeline_svg([replace(scene(laminar), name=evil, caption=evil)], evil))
    assert evil in words(root)
    assert not list(root.iter(f"{SVG}script"))


def test_work_is_darker_where_more_runs(synchronous):
    root = drawn(timeline_svg([scene(synchronous)], ""))
    shades = {rect.get("fill-opacity") for rect in root.iter(f"{SVG}rect") if "generating" in rect.get("fill")}
    assert len(shades) > 2


def test_of_many_replicas_some_rows_are_drawn(laminar):
    shown = scene(laminar, rows=2)
    assert list(shown.loads) == ["r0", "r2"]
    assert shown.rows_note == "shown are 2 of 4 replicas, evenly chosen"
    assert scene(laminar, rows=4).rows_note == ""


def test_several_are_drawn_over_the_same_time(laminar, synchronous):
    systems = [Compared(simulated(each), scene(each)) for each in (laminar, synchronous)]
    scenes = drawn_alike(systems)
    lengths = [end_s - begin_s for begin_s, end_s in (each.shown_s for each in scenes)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.5)
    assert max(lengths) <= 4 * max(system.figures.step_s for system in systems) + 1e-6
    said = words(drawn(compare_svg(systems, "both")))
    assert "Tokens/s trained on" in said
    assert said.count("laminar") == said.count("synchronous") == 2
    assert any("1.00 x" in text for text in said)


def test_systems_without_a_scene_still_have_bars(laminar):
    said = words(drawn(compare_svg([Compared(simulated(laminar), None)], "")))
    assert "laminar" in said


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
@settings(deadline=None)
def test_ticks_are_round_and_inside(begin, length):
    ticks = nice_ticks(begin, begin + length)
    assert len(ticks) <= 10
    assert all(begin - 1e-6 * (begin + length) <= tick <= (begin + length) * (1 + 1e-6) for tick in ticks)
    gaps = {f"{after - before:.4g}" for before, after in pairwise(ticks)}
    assert all(gap.strip("0.")[:1] in "125" for gap in gaps) or begin / length > 1e3


@given(st.lists(st.integers(0, 9), unique=True, min_size=1), st.integers(1, 12))
def test_rows_are_chosen_in_order(names, most):
    chosen = evenly([str(name) for name in names], most)
    assert len(chosen) == min(most, len(names)) == len(set(chosen))
    places = [names.index(int(name)) for name in chosen]
    assert places == sorted(places)
    assert places[0] == 0


def test_the_last_steps_of_what_is_measured():
    stepped_s = [10.0, 20.0, 30.0, 40.0]
    assert last_steps(stepped_s, 10.0, 40.0, 2) == (20.0, 40.0)
    assert last_steps(stepped_s, 10.0, 40.0, 9) == (10.0, 40.0)
    assert last_steps(stepped_s, 10.0, 35.0, 1) == (20.0, 35.0)
    assert last_steps([], 0.0, 5.0, 3) == (0.0, 5.0)


def test_the_drain_at_the_end_of_a_run_is_not_drawn():
    def idle(at_s):
        return Span("replica", "r0", Doing.IDLE, at_s, at_s + 10, "every prompt of the run is admitted")

    assert before_the_drain([], 0.0, 100.0) == 100.0
    assert before_the_drain([idle(80.0), idle(70.0)], 0.0, 100.0) == 70.0
    assert before_the_drain([idle(5.0)], 0.0, 100.0) == 100.0  # nearly all of it
