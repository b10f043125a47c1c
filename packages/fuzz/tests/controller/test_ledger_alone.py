"""Nobody but the ledger changes a trajectory, a group or a count, and nobody but the trainer's state that: in random worlds."""

import ast
import sys
from pathlib import Path

import pytest
from worlds import play, seeds, world

from tailrace.controller import ledger as ledger_module
from tailrace.controller.ledger import Ledger
from tailrace.controller.trainer_state import TrainerState
from tailrace.controller.trajectories import Counts, GroupState, TrajectoryState

OWN = {"ledger.py", "trajectories.py", "trainer_state.py"}
OF_THE_FLEET = {"home", "since"}  # where a trajectory's keys and values are
CHANGES = {"add", "append", "clear", "extend", "pop", "popitem", "remove", "setdefault", "update"}


@pytest.fixture
def writers(monkeypatch):
    """Who wrote what elsewhere than in the ledger's files, while the test runs."""
    found = set()
    for kind in (TrajectoryState, GroupState, Counts, Ledger, TrainerState):

        def checked(self, name, value, kind=kind):
            code = sys._getframe(1).f_code
            file = Path(code.co_filename).name
            if file not in OWN and code.co_name != "__init__" and not (name in OF_THE_FLEET and file == "fleet.py"):
                found.add(f"{file} sets {kind.__name__}.{name} in {code.co_name}")
            object.__setattr__(self, name, value)

        monkeypatch.setattr(kind, "__setattr__", checked)
    return found


def test_every_write_in_random_worlds_is_the_owners(writers):
    for seed in seeds(15):
        play(seed, world(seed), gives_up=True)
        assert not writers, f"seed {seed}: {sorted(writers)}"


def test_a_write_from_outside_is_found(writers):
    Ledger().counts.trained += 1
    assert writers == {"test_ledger_alone.py sets Counts.trained in test_a_write_from_outside_is_found"}


def test_no_other_file_changes_what_the_ledger_lists():
    """Dictionaries and lists of the ledger are changed in its own files alone."""
    folder = Path(ledger_module.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        if file.name in OWN:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            changed = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                changed = node.func.value
            elif isinstance(node, ast.Delete | ast.Assign):
                targets = [target for target in node.targets if isinstance(target, ast.Subscript)]
                changed = targets[0].value if targets else None
            said = ast.unparse(changed) if changed is not None else ""
            assert "ledger." not in said, f"{file.name}, line {node.lineno}: {said}"  # type: ignore[attr-defined]
