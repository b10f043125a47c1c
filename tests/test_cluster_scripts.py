"""The scripts of configs/cluster, tried with stand-ins of Slurm and of Kubernetes' tools, and without a container runtime."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.runs.preflight import check_on_paper
from tailrace.fleetsim.footprint import read_machines
from tailrace.pipeline.config.target import configuration

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "configs" / "cluster"
GIB = 2**30

# A Slurm of directories: `srun` runs here, on the machine that is named, and notes what it was asked for.
FAKE = {
    "scontrol": 'printf "%s\\n" one two three four',
    "srun": """
while [[ $1 == --* ]]; do echo "$1" >> "$NOTES.flags"; shift; done
echo "$*" >> "$NOTES"
exec "$@"
""",
    "hostname": "echo 10.0.0.1 10.1.0.1",
    "ray": """
echo "$RAY_AUTH_MODE $1" >> "$NOTES.ray"
if [[ $1 == get-auth-token ]]; then exit 0; fi
exec sleep 30
""",
    "python": 'echo "${ALIVE:-4}"',
    "tailrace": """
trap 'echo stopped >> "$NOTES"; exit 130' TERM
for _ in $(seq 600); do if [[ $(grep -c start "$NOTES.ray") -ge 2 ]]; then break; fi; sleep 0.05; done
touch "$NOTES.up"
if [[ ${WAITS:-} ]]; then for _ in $(seq 300); do sleep 0.1; done; fi
exit "${STATUS:-0}"
""",
}


@pytest.fixture
def slurm(tmp_path):
    """Starts the script in a job of four machines; returns the process and the file of notes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in FAKE.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    started = []

    def start(*arguments, **settings):
        environment = {
            **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "NOTES": str(tmp_path / "notes"), "SLURM_JOB_ID": "7",
            "SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "m[1-4]", "RAY": str(folder / "ray"),
            "TAILRACE": str(folder / "tailrace"), **settings,
        }  # fmt: skip
        process = subprocess.Popen(
            [CLUSTER / "slurm.sh", *arguments], cwd=tmp_path, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process, tmp_path / "notes"

    yield start
    for process in started:  # Slurm ends what a job leaves
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False, stderr=subprocess.DEVNULL)
        process.wait()


def test_a_job_starts_a_run_on_all_machines(slurm):
    process, notes = slurm("configs/laminar/math-32b.toml", "--set", "pipeline.steps=9")
    assert process.wait(60) == 0
    lines = notes.read_text().splitlines()
    assert any("start --head --block --node-ip-address=10.0.0.1 --port=6379" in line for line in lines)
    assert any(line.endswith("10.0.0.1:6379") for line in lines)  # the others join
    asked = notes.with_name("notes.ray").read_text().splitlines()
    assert asked[0] == "token get-auth-token"
    assert set(asked[1:]) == {"token start"}
    (run,) = [line for line in lines if "/tailrace run " in line]
    assert run.endswith(
        "run configs/laminar/math-32b.toml --set pipeline.steps=9 --run-dir runs/7 --plain --ray-address auto "
        "--set relay.host=node --set relay.count=4"
    )
    assert "--exclude=one" in notes.with_suffix(".flags").read_text()


def test_a_job_goes_on_with_a_run_that_is_there(slurm, tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "events.jsonl").touch()
    process, notes = slurm("configs/laminar/math-32b.toml", RUN="runs/first")
    assert process.wait(60) == 0
    assert "run --resume runs/first --plain --ray-address auto\n" in notes.read_text()


def test_a_jobs_status_is_the_runs(slurm):
    process, _ = slurm("x.toml", STATUS="3")
    assert process.wait(60) == 3


def test_a_job_that_ends_stops_its_run_in_order(slurm):
    import time

    process, notes = slurm("x.toml", WAITS="1")
    until = time.monotonic() + 60
    while not Path(f"{notes}.up").exists():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()  # --signal=B:TERM goes to the script alone
    assert process.wait(60) == 130
    assert "stopped" in notes.read_text()


@pytest.mark.parametrize(
    ("arguments", "settings", "status", "words"),
    [
        ((), {}, 2, "slurm.sh: found no configuration, expected one"),
        (("x.toml",), {"ALIVE": "3", "JOIN_S": "1"}, 1, "found 3 machines in the Ray cluster after 1 s, expected 4"),
        (("x.toml",), {"SLURM_JOB_ID": ""}, 1, "found no job, expected to be started by sbatch"),
    ],
)
@pytest.mark.deep
def test_a_job_that_cannot_be_is_one_line(slurm, arguments, settings, status, words):
    process, _ = slurm(*arguments, **settings)
    assert process.wait(60) == status
    assert words in process.stderr.read()


def test_the_script_is_sound():
    subprocess.run(["bash", "-n", CLUSTER / "slurm.sh"], check=True)
    if (shellcheck := shutil.which("shellcheck")) is not None:
        subprocess.run([shellcheck, CLUSTER / "slurm.sh"], check=True)


def test_kuberay_has_the_machines_that_the_configuration_needs():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    target = re.search(r"/workspace/(configs/\S+\.toml)", spec["entrypoint"])[1]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert f'name = "ray"\nversion = "{cluster["rayVersion"]}"' in (ROOT / "uv.lock").read_text()
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    pods = [cluster["headGroupSpec"], *[workers] * workers["replicas"]]
    machines = read_machines(f"{8 * len(pods)}xH100")
    found = check_on_paper(configuration(str(ROOT / target)), machines)
    assert found.config.relay.count == len(pods)
    for node, pod in enumerate(pods):
        (container,) = pod["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"]
        assert int(limits["nvidia.com/gpu"]) == machines.per_node
        volumes = {volume["name"]: volume for volume in pod["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        shared = found.place(f"/dev/shm of machine {node}").peak
        assert shared < int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) * GIB
        assert found.place(f"host memory of machine {node}").peak < int(limits["memory"].removesuffix("Gi")) * GIB


def test_the_container_file_copies_what_there_is_and_installs_what_is_locked():
    text = (CLUSTER / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in steps} <= {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"}
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
    (sync,) = [rest for word, rest in steps if word == "RUN" and "uv sync" in rest]
    groups = sync.removeprefix("uv sync --frozen ").split()
    export = ["uv", "export", "--frozen", "--offline", "--no-hashes", "--quiet", *groups]
    locked = subprocess.run(export, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^vllm==", locked, re.MULTILINE)
    assert "+cpu" not in locked
    assert "pytest" not in locked
    minor = ".".join(map(str, sys.version_info[:2]))
    assert re.search(r"UV_PYTHON=3\.(11|12|13) ", text)
    assert minor in ("3.11", "3.12", "3.13")
