"""A thread that is to be struck in a phase stops there, goes no further than it may, and waits for nobody for ever."""

import threading

from tailrace.faulttol import FaultKind, InjectedError
from tailrace.pipeline.roles.phase_stops import EndedError, Stops

LONG_S = 20.0


class Walks:
    """A thread that passes phases, and how far it came."""

    def __init__(self, stops, phases):
        self.stops, self.passed, self.error = stops, [], None
        self.thread = threading.Thread(target=self._walk, args=(phases,), daemon=True)
        self.thread.start()

    def _walk(self, phases):
        try:
            for phase in phases:
                self.stops.at(phase)
                self.passed.append(phase)
        except Exception as error:
            self.error = error

    def ends(self):
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()
        return self


def waiting(phase="b", patience_s=LONG_S):
    stops = Stops(patience_s)
    assert not stops.stop_at(phase)
    walks = Walks(stops, "abc")
    assert stops.stop_at(phase, LONG_S)
    assert walks.passed == ["a"]
    return stops, walks


def test_nobody_stops_where_nobody_waits():
    assert Walks(Stops(), "abc").ends().passed == ["a", "b", "c"]


def test_one_that_is_ended_goes_no_further():
    stops, walks = waiting()
    assert stops.struck(FaultKind.KILL)
    stops.close()
    assert isinstance(walks.ends().error, EndedError)
    assert walks.passed == ["a"]
    assert Walks(stops, "b").ends().passed == ["b"]  # of one that is closed nobody wants anything


def test_one_that_hangs_waits_until_it_is_ended():
    stops, walks = waiting(patience_s=0.2)
    stops.struck(FaultKind.HANG)
    walks.thread.join(0.5)
    assert walks.thread.is_alive()
    stops.close()
    assert walks.ends().passed == ["a"]


def test_an_exception_is_raised_there():
    stops, walks = waiting()
    assert stops.struck(FaultKind.RAISE)
    assert isinstance(walks.ends().error, InjectedError)
    assert walks.passed == ["a"]
    assert not stops.struck(FaultKind.RAISE)  # it waits no more


def test_one_whose_engine_stalls_goes_on_to_where_that_shows():
    stops, walks = waiting()
    stops.struck(FaultKind.STALL)
    assert walks.ends().passed == ["a", "b", "c"]


def test_one_that_nobody_strikes_goes_on():
    _, walks = waiting(patience_s=0.05)
    assert walks.ends().passed == ["a", "b", "c"]


def test_it_says_when_it_is_not_there_in_time_and_another_controller_wants_nothing():
    stops = Stops()
    assert not stops.stop_at("b", 0.01)
    assert stops.wanted("b")
    stops.forget()
    assert Walks(stops, "abc").ends().passed == ["a", "b", "c"]


def test_it_stops_once():
    stops = Stops(0.01)
    stops.stop_at("b")
    assert Walks(stops, "bb").ends().passed == ["b", "b"]
    assert not stops.wanted("b")


def test_who_waits_for_one_that_is_ended_hears_so_at_once():
    stops, heard = Stops(), []
    asks = threading.Thread(target=lambda: heard.append(stops.stop_at("b", LONG_S * 10)), daemon=True)
    asks.start()
    stops.close()
    asks.join(LONG_S)
    assert heard == [False]
    assert not stops.stop_at("b", LONG_S * 10)
