"""The package as a newcomer meets it: what an install brings, what an import loads, and its names."""

import re
import subprocess
import sys
from importlib.metadata import requires

import tailrace.controller

COMPONENTS = {"contracts", "faulttol", "processes", "ranker", "repack", "rollout", "staleness", "trajstore"}


def test_an_install_brings_components_and_nothing_of_others():
    found, new = set(), ["tailrace-controller"]
    while new:
        needs = [need for need in requires(new.pop()) or () if "extra ==" not in need]
        names = {re.match(r"[\w.-]+", need)[0] for need in needs} - found
        found |= names
        new += names
    assert found == {f"tailrace-{name}" for name in COMPONENTS}


def _loaded(code):
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_an_import_loads_the_standard_library_and_leaves():
    new = _loaded("import tailrace.controller") - _loaded("")
    ours = {name for name in new if name.startswith("tailrace.")}
    assert {name.split(".")[1] for name in ours} <= {
        "controller",
        "contracts",
        "faulttol",
        "processes",
        "ranker",
        "repack",
    }
    assert {name.partition(".")[0] for name in new - ours} - {"tailrace"} <= set(sys.stdlib_module_names)
    assert "asyncio" not in new


def test_its_policies_load_nothing_of_others_either():
    policies = _loaded("from tailrace.controller.policies import batching, tail_batching, training")
    assert not policies & {"numpy", "pydantic", "ray", "torch", "transformers", "vllm"}


def test_public_names():
    assert all(getattr(tailrace.controller, name).__doc__ for name in set(tailrace.controller.__all__) - {"AXES"})
