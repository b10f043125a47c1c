"""Case files: readable, complete, and refused in one line where something is wrong with them."""

import json

import pytest

from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.trial import run_case


def test_a_case_comes_back_from_its_file(seeds, tmp_path):
    for seed in seeds(30):
        case, path = draw_case(seed), tmp_path / "case.json"
        path.write_text(case.to_json())
        assert Case.read(path) == case
        assert max(map(len, path.read_text().splitlines())) < 200


def test_a_case_runs_the_same_from_its_file(tmp_path):
    case, path = draw_case(3), tmp_path / "case.json"
    path.write_text(case.to_json())
    assert run_case(Case.read(path), twice=True).digest == run_case(case, twice=True).digest


def changed(**changes):
    return json.dumps({**json.loads(draw_case(1).to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "JSON"),
        (changed(replicas=0), "replicas"),
        (changed(surprise=1), "surprise"),
        (changed(faults=[{"kind": "explode"}]), "faults.0.kind"),
        (changed(faults=[{"kind": "kill", "after_s": -1}]), "faults.0.after_s"),
    ],
)
def test_a_damaged_case_is_refused_in_one_line(text, told, tmp_path):
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(CaseError, match=told) as refused:
        Case.read(path)
    assert len(str(refused.value).splitlines()) == 1
    assert str(path) in str(refused.value)


def test_a_missing_case_is_refused(tmp_path):
    with pytest.raises(CaseError, match="No such file"):
        Case.read(tmp_path / "nothing.json")


def test_an_unknown_policy_is_refused():
    case = draw_case(1)
    pipeline = {**case.pipeline.model_dump(), "sync": {"name": "sometimes"}}
    wrong = Case.model_validate({**{name: getattr(case, name) for name in Case.model_fields}, "pipeline": pipeline})
    with pytest.raises(CaseError, match=r"key 'pipeline\.sync': found 'sometimes'"):
        wrong.spec()


def test_an_option_that_a_policy_does_not_take_is_refused():
    case = draw_case(1)
    pipeline = {**case.pipeline.model_dump(), "sampler": {"name": "fifo", "depth": 3}}
    wrong = Case.model_validate({**{name: getattr(case, name) for name in Case.model_fields}, "pipeline": pipeline})
    with pytest.raises(CaseError, match="depth"):
        wrong.fleet()
