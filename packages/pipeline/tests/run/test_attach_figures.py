"""Controllers that attached are counted, and whom they restarted without need."""

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.incidents import Incidents
from tailrace.pipeline.run.figures.log import AttachFigures


def test_only_restarts_of_members_that_lived_count():
    died = c.Down("replica", "r0", "it died while no controller was there")
    restarts = [c.Restart(8, "replica", "r0"), c.Restart(9, "scorer", "0")]
    log = [
        Instant(1.0, [c.Tick()], [c.Restart(7, "data", "0")]),
        Instant(2.0, [c.Attached(2), died], restarts),
        Instant(3.0, [c.Attached(3)], []),
    ]
    none, found = AttachFigures(), AttachFigures()
    follow(log[:1], none)
    follow(log, found)
    assert found.plain() == {"controller_attaches": 2, "restarts_by_attach": 1}
    assert none.plain() == {"controller_attaches": 0, "restarts_by_attach": 0}


def test_people_hear_of_it():
    (line,) = Incidents().lines(2.0, [c.Attached(2, 3.21)], [])
    assert line == "the controller died; after 3.2 s another one (number 2) attached to its members, which live on"
