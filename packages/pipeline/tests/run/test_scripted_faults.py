"""Which members a scripted fault may name."""

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.scripted_faults import check_faults


def check(fault, adds):
    check_faults(RunConfig.model_validate({"rollout": {"replicas": 2}, "faults": (fault,)}), lambda: adds)


@pytest.mark.parametrize("fault", ["replica:r5@60s", "stall:replica:2@step3"])
def test_a_replica_that_may_join_later_may_be_struck(fault):
    check(fault, adds=True)
    with pytest.raises(ConfigError, match="expected one of r0, r1"):
        check(fault, adds=False)


@pytest.mark.parametrize("fault", ["replica:first@60s", "relay:7@60s"])
def test_what_no_member_is_ever_called_is_refused(fault):
    with pytest.raises(ConfigError, match="expected one of"):
        check(fault, adds=True)
