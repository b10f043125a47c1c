"""The process of a member on Ray imports in one thread at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace.runtime.hosts.ray_actor import RoleActor

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
    actor = RoleActor(0)
    ahead = threading.Thread(target=actor.prepare, args=(_name, {}, None))
    ahead.start()
    while ahead.is_alive() and not module.with_name("replaces_itself.py.begun").exists():
        ahead.join(0.01)
    actor.build(_name, {})
    ahead.join()
    assert actor.call("upper", ()) == "THERE"


EARLY = """
import threading
from tailrace.contracts import Place
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost


class Role:
    def ready(self):
        return Ready()

    def double(self, number):
        return 2 * number


host = RayHost(cpus=2)
try:
    host.prepare("data", "0", RoleSpec(threading.Event), Place())
    caller = host.caller("data")
    _, actor = host._actors.newest("data", "0")
    early = [caller.send(actor, "double", (number,)) for number in range(40)]  # Ray hands calls of one process on in order
    host.spawn("data", "0", 1, RoleSpec(Role), Place()).call("ready").result(60)
    print(host._ray.get(early, timeout=60), flush=True)
finally:
    host.close()
"""


@pytest.mark.timeout(300)
@pytest.mark.deep
def test_a_member_comes_up_though_more_call_it_before_than_it_has_threads() -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str([2 * number for number in range(40)])


HANGS = """
import sys, time
import ray._private.worker
from tailrace.runtime.hosts import ray as hosts

hosts.LEAVE_S = 1.0
host = hosts.RayHost(cpus=1)
ray._private.worker.disconnect = lambda *_, **__: time.sleep(3600)
host.close()
print("summary", flush=True)
"""


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_ray_that_does_not_let_go_holds_up_neither_a_run_nor_its_process() -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "summary"
    assert "did not let go" in done.stderr


def test_it_is_built_once_though_two_controllers_say_so() -> None:
    built = []
    actor = RoleActor(0)
    for _ in range(2):
        actor.build(lambda: built.append(1), {})
    assert built == [1]


WATCHED = """
import sys, time
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.hosts.ray_actor import RoleActor

class Role:
    def ready(self):
        time.sleep(3)
        print("loaded", flush=True)
        return Ready()

    def events(self, timeout_s):
        time.sleep(timeout_s)
        return []

    def close(self):
        print("saved", flush=True)

actor = RoleActor(0, 1.0)
actor.build(Role, {})
actor.call("ready", (), 1)
while True:
    line = sys.stdin.readline()
    if not line:
        time.sleep(600)
    actor.call("events", (0.0, 0, 0), 1)
    print("asked", flush=True)
"""


@pytest.mark.deep
def test_a_role_that_no_controller_calls_saves_and_stops_once_it_has_loaded() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert [line.strip() for line in process.stdout] == ["loaded", "asked", "saved"]
        assert process.wait(60) == 0


AHEAD = """
import sys, time
from tailrace.runtime.hosts.ray_actor import RoleActor

def fails():
    raise ValueError("no role")

actor = RoleActor(0, 1.0)
if sys.argv[1] == "fails":
    actor.build(fails, {})
elif sys.argv[1] == "is built":
    actor.build(lambda: time.sleep(3), {})
    print("built", flush=True)
elif sys.argv[1] == "hangs":
    actor = RoleActor(0, 1.0, patience_s=1.0)
    actor.build(lambda: time.sleep(600), {})
else:
    for _ in range(6):
        time.sleep(0.5)
        actor.claimed()
print("quiet", flush=True)
time.sleep(600)
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("it", "said"),
    [("fails", ["quiet"]), ("is built", ["built", "quiet"]), ("is claimed", ["quiet"]), ("hangs", [])],
)
def test_a_process_without_a_role_ends_once_nobody_claims_it(it: str, said: list[str]) -> None:
    """It was started ahead, and its controller died while it prepared the run."""
    done = subprocess.run([sys.executable, "-c", AHEAD, it], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:-1] == said, done.stderr
    assert done.returncode == 0
