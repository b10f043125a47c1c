"""A policy that raises ends the run with one line, and the run can go on from there."""

import pytest
from scripted import Scripted, policy, spec
from wrong_policies import Raises, Wrong, boom, ended, goes_on, with_wrong

from tailrace import contracts as c


@pytest.mark.parametrize(
    ("axis", "method", "left"),
    [
        ("routing", "route", 1),
        ("sync", "pulls", 1),
        ("sync", "accepts", 3),
        ("relocation", "due", 2),
        ("training", "split", 1),
        ("provisioning", "plan", 2),
        ("sampler", "pick", 1),
    ],
)
def test_one_that_raises_is_named_with_its_method(axis, method, left):
    run, wrong = with_wrong(axis, method, boom, left=left)
    line = ended(run)
    assert line.startswith(f"{axis} policy ")
    assert "wrong_policies.Wrong" in line
    assert "ZeroDivisionError: a mistake" in line
    goes_on(run, wrong)


@pytest.mark.parametrize("method", ["tentative", "start", "complete", "ready", "consume"])
def test_a_gate_that_raises_is_named(method):
    made = Wrong(policy("admission", "inherent"), "gate", lambda right, *_: Raises(right, method, 2))
    run = Scripted(spec(admission=made))
    run.go(c.Tick())
    line = ended(run)
    assert line.startswith("admission gate policy ")
    assert "wrong_policies.Raises: go_wrong raised LookupError: it has no such group" in line
    goes_on(run)


@pytest.mark.parametrize("method", ["next", "launched", "keeps"])
def test_a_source_that_raises_is_named(method):
    made = Wrong(policy("batching", "plain", samples=2), "open", lambda right, *_: Raises(right, method, 3))
    run = Scripted(spec(batching=made))
    run.go(c.Tick())
    assert ended(run).startswith("batching source policy ")
    goes_on(run)


def test_what_was_not_a_policys_fault_is_no_policys_fault():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    with pytest.raises(c.TailraceError, match=r"found Stepped\(9\)"):
        run.handle(c.Stepped(9))
