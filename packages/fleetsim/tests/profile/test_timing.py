"""Seconds with cores of one's own, whatever the others did meanwhile."""

import pytest
from profile_machine import clock

from tailrace.fleetsim.profile.samples import ClockKind, ClockReading, Timing, timing_of


def test_on_shared_cores_processor_time_counts():
    own = timing_of("cpu", processes=True, spans=[(clock(0.0), clock(2.0, 1.0))] * 20)
    assert own == Timing(ClockKind.PROCESS, 1.0)
    assert own.spent_s(clock(5.0, 1.0), clock(9.0, 2.5)) == 1.5


def test_a_member_that_keeps_two_cores_busy_takes_half_as_long():
    spans = [(clock(i, 1.9 * i), clock(i + 1, 1.9 * i + 1.9)) for i in range(20)]
    own = timing_of("cpu", processes=True, spans=spans)
    assert own.cores == pytest.approx(1.9)
    assert own.spent_s(clock(0.0, 0.0), clock(7.0, 3.8)) == pytest.approx(2.0)


def test_on_a_gpu_the_time_that_passed_counts():
    own = timing_of("cuda", processes=True, spans=[])
    assert own.spent_s(clock(1.0, 0.0), clock(4.0, 0.5)) == 3.0
    assert own.processor_s(clock(1.0, 0.0), clock(4.0, 0.5)) == 0.0


def test_threads_of_one_process_have_their_own_time():
    own = timing_of("cpu", processes=False, spans=[])
    assert own.spent_s(ClockReading(0.0, 0.0, 0.0), ClockReading(5.0, 4.0, 1.0)) == 1.0
