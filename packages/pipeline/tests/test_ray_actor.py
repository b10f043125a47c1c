"""The process of a member on Ray imports in one thread at a time."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tailrace.pipeline.hosts.ray import _RoleActor

LAZY = """
import sys, time, types
lazy = types.ModuleType(__name__)
lazy.name = "there"
open(__file__ + ".begun", "w").close()
time.sleep(0.5)
sys.modules[__name__] = lazy
"""


def _name() -> str:
    from replaces_itself import name  # type: ignore[import-not-found]

    return str(name)


def test_a_module_that_replaces_itself_is_whole_for_the_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "replaces_itself.py"
    module.write_text(LAZY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "replaces_itself", raising=False)
    actor = _RoleActor(0)
    ahead = threading.Thread(target=actor.prepare, args=(_name, {}, None))
    ahead.start()
    while ahead.is_alive() and not module.with_name("replaces_itself.py.begun").exists():
        ahead.join(0.01)
    actor.build(_name, {})
    ahead.join()
    assert actor.call("upper", ()) == "THERE"
