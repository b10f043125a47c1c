"""Random schedules of kills, suspensions, cuts, slow and damaging links on real relay processes.

TAILRACE_CHAOS sets how many; they run on two fleets at once.
"""

import os
import threading

import pytest
from simulation.chaos import Fleet

from tailrace.paramserver import new_token

SCHEDULES = int(os.environ.get("TAILRACE_CHAOS", "10"))
LANES = 2


@pytest.mark.deep
@pytest.mark.timeout(120 + 10 * SCHEDULES)
def test_real_relays_converge_and_show_nothing_wrong():
    fleets = [Fleet(new_token(), 4) for _ in range(LANES)]
    try:
        lanes = [
            threading.Thread(
                target=lambda lane=lane: [fleets[lane].run(seed) for seed in range(lane, SCHEDULES, LANES)]
            )
            for lane in range(LANES)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    finally:
        for fleet in fleets:
            fleet.close()
    wrong = [text for fleet in fleets for text in fleet.wrong]
    assert not wrong, f"{len(wrong)} wrong, the first:\n{wrong[0]}"
    converged = sum(len(fleet.seconds_to_converge) for fleet in fleets)
    assert converged == SCHEDULES
    assert sum(fleet.versions_read for fleet in fleets) > SCHEDULES
    kinds = {kind for fleet in fleets for kind in fleet.faults}
    assert len(kinds) >= 4, f"found only {kinds}; the schedules do not try enough"
