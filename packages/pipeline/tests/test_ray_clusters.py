"""What a Ray cluster of a test leaves: nothing, whoever of it ended before."""

import os
import signal
import subprocess

import pytest

from tailrace.pipeline.testing.ray_clusters import lose
from tailrace.processes.namespaces import machines, why_not


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "they can be made")
def test_all_on_a_machine_ends_though_the_process_that_held_its_network_is_gone():
    with machines(2) as (one, other):
        assert os.getsid(one.holder) == one.holder  # Ctrl-C at a terminal does not reach it
        lost, spared = (machine.start(["sleep", "60"], stderr=subprocess.DEVNULL) for machine in (one, other))
        os.kill(one.holder, signal.SIGKILL)
        try:
            while lost.poll() is None:  # until it stands there, it is not found
                lose([one])
            assert lost.returncode == -signal.SIGKILL
            assert spared.poll() is None
        finally:
            lost.kill()
            spared.kill()
            spared.wait(10)
