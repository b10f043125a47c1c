"""What detection took for down: wrongly, and too late."""

import pytest

from tailrace import contracts as c
from tailrace.faulttol import RoleAware
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.detection import DetectionFold
from tailrace.pipeline.run.figures.folding import Audience, follow

SILENT, STILL, HYBRID = c.Why.SILENT, c.Why.STILL, c.Why.HYBRID


def struck(role, id_, kind):
    return c.Struck(role, id_, kind)


def found(why=SILENT, age=61.0, limit=60.0, role="replica", id_="r0", kind=c.Restart):
    name = "still_s" if why is STILL else "silent_s"
    numbers = {} if why is HYBRID else {name: age, "limit_s": limit}
    return kind(1, role, id_, reason=c.Reason(why, "r0" if why is HYBRID else "", numbers))


def died(role="replica", id_="r0"):
    return c.Down(role, id_, "killed", c.Cause.DIED)


def figures(*entries):
    log = []
    for now, *ones in entries:
        commands = [one for one in ones if isinstance(one, c.Command)]
        log.append(Instant(now, [one for one in ones if not isinstance(one, c.Command)], commands))
    fold = DetectionFold(RoleAware())
    follow(log, Audience(fold))
    shown = fold.figures()
    return shown.detections, shown.false_detections, shown.late_detections


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(5, struck("replica", "r0", "hang")), (66, found())], (1, 0, 0)),
        ([(5, struck("replica", "r0", "stall")), (66, found(STILL))], (1, 0, 0)),
        ([(66, found())], (1, 1, 0)),  # nobody had struck it
        ([(66, found(kind=c.Stop))], (1, 1, 0)),
        ([(5, struck("relay", "0", "hang")), (66, found())], (1, 1, 0)),  # somebody else
        ([(5, struck("replica", "r0", "hang")), (66, found()), (200, found())], (2, 1, 0)),  # its successor
        ([(5, struck("replica", "r0", "hang")), (99, found(age=94.0))], (1, 0, 1)),
        ([(5, struck("replica", "r0", "kill")), (8, died(), found(c.Why.FAILED))], (0, 0, 0)),
        ([(5, struck("replica", "r0", "kill")), (11, died(), found(c.Why.FAILED))], (0, 0, 1)),
        ([(5, struck("replica", "r0", "hang")), (60, c.Tick())], (0, 0, 0)),
        ([(5, struck("replica", "r0", "hang")), (71, c.Tick())], (0, 0, 1)),  # nobody has noticed
        ([(5, struck("trainer", "0.1", "hang")), (66, found(role="trainer", id_="0"))], (1, 0, 0)),  # one of its ranks
        ([(5, struck("replica", "r0", "hang")), (66, found(), found(HYBRID, role="trainer", id_="0"))], (2, 0, 0)),
        ([(66, found(c.Why.PLANNED, kind=c.Stop)), (70, found(c.Why.MACHINE))], (0, 0, 0)),
    ],
)
def test_detections(entries, expected):
    assert figures(*entries) == expected
