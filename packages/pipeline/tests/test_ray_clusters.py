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
        command = ["sh", "-c", "echo; exec sleep 60"]
        lost, spared = (machine.start(command, stdout=subprocess.PIPE) for machine in (one, other))
        try:
            for process in (lost, spared):
                assert process.stdout.readline() == b"\n"  # it has entered the network, for which the holder must live
            os.kill(one.holder, signal.SIGKILL)
            lose([one])
            assert lost.wait(10) == -signal.SIGKILL
            assert spared.poll() is None
        finally:
            for process in (lost, spared):
                process.kill()
                process.communicate()
