import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ParamServerError
from tailrace.paramserver.codec.choose import (
    PROBE_PAUSE,
    CodecChooser,
    CodecSpeed,
    LinkSpeed,
    ObservationInvalid,
    choose,
)

CHUNK = 32 * 2**20
speeds = st.floats(1e6, 1e11)
near = st.floats(1e8, 3e9)
ratios = st.floats(0.001, 1.0)


@given(link=speeds, encode=speeds, ratio=ratios, margin=st.floats(0, 0.5))
def test_never_what_the_model_says_is_slower(link, encode, ratio, margin):
    choice = choose(link, encode, ratio, margin=margin)
    assert choice.raw_s == pytest.approx(1 / link)
    assert choice.encoded_s == pytest.approx(1 / encode + ratio / link)
    assert choice.encode == (choice.encoded_s < (1 - margin) * choice.raw_s)
    assert choice.encode == (choice.better_s < choice.other_s) or choice.other_s >= (1 - margin) * choice.better_s


@pytest.mark.parametrize(
    ("link", "encode", "ratio", "expected"),
    [
        (125e6, 2e9, 0.014, True),  # 1 Gbit/s
        (1.25e9, 2e9, 0.014, True),  # 10 Gbit/s
        (1.25e9, 1.7e9, 0.2, False),  # 6 % faster is within the margin
        (1.25e9, 2e9, 0.5, False),
        (12.5e9, 2e9, 0.014, False),  # 100 Gbit/s: the link is faster than the codec
        (125e6, 2e9, 1.0, False),  # nothing is gained
    ],
)
def test_what_is_chosen(link, encode, ratio, expected):
    assert choose(link, encode, ratio).encode is expected


@given(st.lists(st.tuples(st.integers(1, 2**40), st.floats(1e-6, 1e4)), min_size=1, max_size=30))
def test_a_speed_lies_between_those_observed(observed):
    speed = LinkSpeed()
    for nbytes, seconds in observed:
        speed = speed.observe(nbytes, seconds)
    each = [nbytes / seconds for nbytes, seconds in observed]
    assert min(each) * 0.999 <= speed.bytes_per_s <= max(each) * 1.001


def test_a_speed_follows_what_changed():
    speed = LinkSpeed()
    assert speed.bytes_per_s is None
    for _ in range(100):
        speed = speed.observe(CHUNK, CHUNK / 1e9)
    assert speed.bytes_per_s == pytest.approx(1e9)
    for _ in range(10):
        speed = speed.observe(CHUNK, CHUNK / 1e8)
    assert speed.bytes_per_s == pytest.approx(1e8, rel=0.1)


def test_a_payload_of_none_counts_as_the_chunk():
    codec = CodecSpeed().observe_encode(1000, None, 0.5)
    assert (codec.ratio, codec.encode_bytes_per_s) == (1.0, 2000.0)
    codec = codec.observe_encode(1000, 100, 0.5)
    assert codec.ratio == 0.1  # the first one only counts until there is a second
    codec = codec.observe_encode(1000, None, 0.5)
    assert codec.ratio == pytest.approx((0.75 * 100 + 1000) / 1750)


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)]
)
def test_what_cannot_be_observed_is_refused(nbytes, seconds):
    chooser = CodecChooser()
    for observe in (chooser.sent_raw, lambda n, s: chooser.sent_encoded(n, 1, s)):
        with pytest.raises(ObservationInvalid, match="more than 0 of both") as caught:
            observe(nbytes, seconds)
        assert isinstance(caught.value, ParamServerError)


def drive(chooser, chunks, link, encode, ratio, log=None):
    """Send so many chunks in a world of these speeds. Returns the seconds that they took, and the chooser after."""
    total = 0.0
    for _ in range(chunks):
        decision, chooser = chooser.decide(CHUNK)
        if decision.encode:
            total += CHUNK * choose(link, encode, ratio).encoded_s
            chooser = chooser.sent_encoded(CHUNK, int(ratio * CHUNK), CHUNK / encode)
        else:
            total += CHUNK / link
            chooser = chooser.sent_raw(CHUNK, CHUNK / link)
        if log is not None:
            log.append(decision)
    return total, chooser


@settings(deadline=None, max_examples=50)
@given(link=speeds, encode=speeds, ratio=ratios)
def test_in_a_steady_world_it_is_nearly_as_fast_as_the_better_way(link, encode, ratio):
    """The first probe is not paid for in advance; after it, probes cost no more than their budget."""
    log = []
    _, chooser = drive(CodecChooser(), 4, link, encode, ratio)
    taken, _ = drive(chooser, 1000, link, encode, ratio, log)
    better = min(1 / link, choose(link, encode, ratio).encoded_s) * 1000 * CHUNK
    assert taken <= better * 1.05 / 0.9 * 1.001
    for decision in log:
        if not decision.probe:
            assert decision.encode == decision.choice.encode
            assert not decision.encode or decision.choice.encoded_s < decision.choice.raw_s


@settings(deadline=None, max_examples=25)
@given(first=st.tuples(near, near, ratios), then=st.tuples(near, near, ratios))
def test_it_changes_its_mind_when_the_world_does(first, then):
    """Speeds within a factor of 30: further apart, probes are as rare as they are dear, and a test lasts too long."""
    real = choose(then[0], then[1], then[2])
    assume(abs(real.encoded_s / real.raw_s - 0.9) > 0.05)  # nearer than that, either is right
    _, chooser = drive(CodecChooser(), 50, *first)
    _, chooser = drive(chooser, 8000, *then)
    assert chooser.choice.encode == real.encode


def test_the_first_chunks_measure_both_ways():
    log = []
    drive(CodecChooser(), 5, 125e6, 2e9, 0.014, log)
    assert [(d.encode, d.probe) for d in log] == [(False, True), (True, True)] * 2 + [(True, False)]


def test_a_cold_start_is_forgotten():
    """The first encoding imports numpy, and the first transfer finds a window of a few packets."""
    chooser = CodecChooser().sent_raw(CHUNK, 60.0).sent_encoded(CHUNK, CHUNK // 50, 60.0)
    _, chooser = drive(chooser, 2, 1.25e9, 2e9, 0.014)
    assert chooser.choice == choose(1.25e9, 2e9, int(0.014 * CHUNK) / CHUNK)


def test_probes_come_now_and_then():
    log = []
    drive(CodecChooser(), 5000, 125e6, 2e9, 0.1, log)
    probes = [i for i, decision in enumerate(log) if decision.probe and i > 3]
    assert len(probes) >= 5
    assert all(not log[i].encode for i in probes)
    assert min(b - a for a, b in itertools.pairwise(probes)) > PROBE_PAUSE


def test_the_same_observations_lead_to_the_same_decisions():
    worlds = [(1e9, 2e9, 0.1), (2e10, 1e9, 0.5), (1e8, 1e9, 0.02)]
    logs = [[], []]
    for log in logs:
        chooser = CodecChooser()
        for world in worlds:
            _, chooser = drive(chooser, 200, *world, log)
    assert logs[0] == logs[1]
    before = CodecChooser()
    before.decide(CHUNK)
    assert before == replace(before)
    assert before == CodecChooser()
