"""Each kind of bad input: exit status 2, a line that names the file or key, and nothing is left behind."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.contracts import EnginePlugin

pytestmark = pytest.mark.usefixtures("one_verifier_process", "one_probe_of_each_sandbox")
CONFIG = """
app = "laminar"

[task]
train = "train.jsonl"
held_out = "held_out.jsonl"
verifier = "numeric"
held_out_size = 4

[model]
path = "model"

[pipeline]
steps = 4
prompts_per_step = 2
samples_per_prompt = 2

[rollout]
replicas = 2
max_tokens = 16
options = {max_model_len = 64}
"""
NO_FILES = CONFIG.replace('train = "train.jsonl"', "").replace('held_out = "held_out.jsonl"', "")
ROW = '{"prompt": "1 + 1 = ", "answer": "2"}\n'


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A project that could run."""
    pytest.importorskip("torch", reason="a model is written")
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    root = tmp_path_factory.mktemp("original")
    texts = [f"{a} + {b} = " for a in range(6) for b in range(6)]
    rows = [f'{{"prompt": "{text}", "answer": "{eval(text[:-2])}"}}\n' for text in texts]
    (root / "train.jsonl").write_text("".join(rows[8:]))
    (root / "held_out.jsonl").write_text("".join(rows[:8]))
    size = train_tokenizer(texts, root / "model", vocab_size=64)
    build_model(root / "model", vocab_size=size, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32)
    (root / "c.toml").write_text(CONFIG)
    (root / "verify.py").write_text(
        "import time\n"
        "def raises(response, answer, metadata): raise ValueError('no such digit')\n"
        "def text(response, answer, metadata): return 'right'\n"
        "def hangs(response, answer, metadata): time.sleep(60)\n"
    )
    return root


@pytest.fixture
def project(original, tmp_path, monkeypatch):
    root = tmp_path / "project"
    shutil.copytree(original, root)
    monkeypatch.chdir(root)
    return root


def write(name, content):
    """A preparation: write a file, whose folder is made."""

    def prepare():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return prepare


def remove(name):
    return lambda: Path(name).unlink()


def cut(name):
    """A preparation: keep the first half of a file."""
    return lambda: os.truncate(name, Path(name).stat().st_size // 2)


def value_model(vocab_size=None, tokens=None):
    """A preparation: a critic of the model's type, perhaps with another vocabulary or another tokenizer."""

    def prepare():
        from tailrace.trainer.testing import build_value_model

        directory = build_value_model(Path("critic"), Path("model"))
        changes = {"config.json": {"vocab_size": vocab_size}} if vocab_size else {}
        changes |= {"tokenizer.json": {"model": {"vocab": tokens}}} if tokens else {}
        for name, change in changes.items():
            path = directory / name
            path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return prepare


def settings(*pairs):
    return ["run", "c.toml", *(word for pair in pairs for word in ("--set", pair))]


def tail(option):
    return settings(f'pipeline.batching={{name = "tail-batching", {option}}}', "pipeline.admission=on-policy")


def sizes(options):
    return settings(f'pipeline.provisioning={{name = "adaptive-tp", {options}}}')


RUN = ["run", "c.toml"]


def pools(*tables, sites=""):
    """A preparation: the configuration with pools of replicas, and relays at other sites."""
    text = "".join(f"\n[[rollout.pools]]\n{table}\n" for table in tables) + f"\n[relay.sites]\n{sites}\n"
    return write("c.toml", CONFIG + text)


CODE = {"entry_point": "f", "tests": [{"args": [1], "expected": 2}]}


def programs(answer="def f(x): return 2 * x", **metadata):
    """A preparation: one training row of a program."""
    row = {"prompt": "2 + 2 = ", "answer": answer, "verifier": "code", "metadata": {**CODE, **metadata}}
    return write("train.jsonl", json.dumps(row) + "\n")


def judged(**table):
    """A preparation: the configuration with a judge, and a row that asks for it."""

    def prepare():
        write("train.jsonl", json.dumps({"prompt": "2 + 2 = ", "answer": "4", "verifier": "judge"}) + "\n")()
        table_ = {"model": "model", "template": "{prompt} {response}", **table}
        lines = [f"{key} = {json.dumps(value)}" for key, value in table_.items() if value is not None]
        options = 'options = {yes = "1", no = "2", memory_bytes = 1000}'
        write("c.toml", "\n".join([CONFIG, "[reward.judge]", *lines, options]))()

    return prepare


SPEAKS = """
import os
class Speaks:
    def __init__(self, words=1): self.words = words
    def reset(self, row): return "1 + " * self.words + "= "
    def step(self, action): return {"observation": "", "done": True}
    def close(self): pass
class Fickle(Speaks):
    def reset(self, row): return os.urandom(4).hex()
class Broken(Speaks):
    def reset(self, row): raise RuntimeError("out of riddles")
"""


def speaks(name, *pairs):
    """A run with an environment of the project's own."""
    return settings(f"environment.name=speaks.py:{name}", "task.verifier=environment", *pairs)


BEGINNINGS = {
    "other-words-each-time": (speaks("Fickle"), ["train.jsonl, line 1", "speaks.py:Fickle", "expected the same each time"]),
    "more-words-than-the-context": (speaks("Speaks", "environment.options.words=40"), ["train.jsonl, line 1", "at most 48"]),
    "no-words-at-all": (speaks("Broken"), ["train.jsonl, line 1", "out of riddles"]),
}  # fmt: skip
RARELY = ["other-words-each-time", "no-words-at-all"]  # each starts an environment, which takes as long as 50 kinds

KINDS = {
    # what to run
    "app-unknown": (["run", "laminer"], None, ["laminer", "laminar"]),
    "file-missing": (["run", "d.toml"], None, ["d.toml"]),
    "file-is-a-folder": (["run", "model"], None, ["model"]),
    "not-toml": (RUN, write("c.toml", "app = laminar"), ["c.toml", "line 1"]),
    "config-not-utf-8": (RUN, write("c.toml", b'app = "\xff"'), ["c.toml", "UTF-8"]),
    "base-missing": (RUN, write("c.toml", 'app = "laminar"\nbase = "below.toml"'), ["below.toml"]),
    "base-of-itself": (RUN, write("c.toml", 'app = "laminar"\nbase = "c.toml"'), ["c.toml", "base"]),
    "nothing-to-run": (["run"], None, ["TARGET"]),
    "resume-and-target": ([*RUN, "--resume", "model"], None, ["--resume"]),
    "resume-missing": (["run", "--resume", "none"], None, ["none"]),
    "resume-no-run": (["run", "--resume", "model"], None, ["model"]),
    # rewards
    "tests-missing": (
        RUN,
        programs(tests=[]),
        ["train.jsonl, line 1", "found a row without tests", "expected 'tests'"],
    ),
    "tests-malformed": (RUN, programs(tests=[{"args": 1}]), ["train.jsonl, line 1", "as test 1"]),
    "reference-fails": (
        RUN,
        programs("def f(x): return 3 * x"),
        ["train.jsonl, line 1", "the reference solution fails"],
    ),
    "timeouts-crossed": (
        settings("reward.code.min_timeout_s=9", "reward.code.max_timeout_s=3"),
        None,
        ["reward.code.min_timeout_s", "9", "3"],
    ),
    "score-kind-unknown": (settings("reward.maths.workers=2"), None, ["reward.maths", "math"]),
    "sandbox-unknown": (settings("reward.code.sandbox=sandlok"), None, ["reward.code.sandbox", "sandlock"]),
    "sandbox-does-not-work": (
        settings("reward.code.sandbox=sandbox-fusion:http://127.0.0.1:9"),
        programs(),
        ["reward.code.sandbox", "no sandbox works here", "install a backend"],
    ),
    "judge-missing": (RUN, judged(model=None), ["reward.judge.model", "expected the model that judges"]),
    "judge-too-big": (RUN, judged(), ["reward.judge", "memory_bytes = 1,000", "expected at least"]),
    "judge-template": (RUN, judged(template="{prompt}"), ["reward.judge", "{response}"]),
    # keys
    "table-unknown": (RUN, write("c.toml", CONFIG + "[pipline]\nsteps = 3"), ["pipline", "pipeline"]),
    "key-unknown": (settings("pipeline.step=3"), None, ["pipeline.step", "did you mean 'steps'"]),
    "key-of-the-wrong-kind": (settings("pipeline.steps=many"), None, ["pipeline.steps", "many"]),
    "value-out-of-range": (settings("pipeline.steps=-1"), None, ["pipeline.steps", "-1"]),
    "set-without-value": (settings("pipeline.steps"), None, ["pipeline.steps", "key=value"]),
    "set-of-a-table": (settings("pipeline=3"), None, ["pipeline", "3"]),
    "two-faults-two-lines": (
        settings("pipeline.steps=-1", "rollout.replica=1"),
        None,
        ["pipeline.steps", "rollout.replica"],
    ),
    "policy-unknown": (settings("pipeline.routing=least-load"), None, ["pipeline.routing", "least-loaded"]),
    "policy-option-unknown": (settings("pipeline.relocation.roofline=3"), None, ["roofline", "roofline_batch"]),
    "policy-option-wrong": (settings("pipeline.relocation.roofline_batch=-3"), None, ["roofline_batch", "-3"]),
    "trainer-option-unknown": (settings("trainer.options.lrr=1"), None, ["lrr", "lr"]),
    "trainer-option-text": (settings("trainer.options.lr=1e-3x"), None, ["trainer.options", "'lr'", "1e-3x"]),
    "trainer-option-infinite": (settings("trainer.options.lr=inf"), None, ["trainer.options", "'lr'", "inf"]),
    "trainer-cells": (
        settings("trainer.processes=3", "trainer.cells=2"),
        None,
        ["trainer.processes", "trainer.cells", "found 3 and 2"],
    ),
    "trainer-cells-option": (settings("trainer.options.cells=2"), None, ["trainer.options", "trainer.cells"]),
    "advantages-without-the-batch": (
        settings("pipeline.training=streamed", "trainer.advantages=batch"),
        None,
        ["trainer.advantages", "pipeline.training", "'streamed'", "'batch'", "'group'"],
    ),
    "loss-without-the-batch": (
        settings("pipeline.training=streamed", "trainer.loss.name=reinforce++"),
        None,
        ["trainer.loss", "pipeline.training", "'streamed'", "'reinforce++'", "'group'"],
    ),
    "loss-without-the-batch-in-parts": (
        settings("pipeline.training={name='dynamic-batch', parts=2}", "trainer.loss.name=reinforce++"),
        None,
        ["trainer.loss", "pipeline.training", "'dynamic-batch'", "'reinforce++'", "'group'"],
    ),
    "advantages-unknown": (
        settings("trainer.advantages=groups"),
        None,
        ["trainer.advantages.name", "'groups'", "group"],
    ),
    "loss-unknown": (settings("trainer.loss.name=gpso"), None, ["trainer.loss.name", "'gpso'", "did you mean 'gspo'?"]),
    "loss-option-unknown": (
        settings("trainer.loss.name=tis", "trainer.loss.caps=2"),
        None,
        ["trainer.loss", "'tis'", "'caps'", "did you mean 'cap'?"],
    ),
    "loss-option-range": (
        settings("trainer.loss.clip_low=1.5"),
        None,
        ["trainer.loss", "'dapo'", "clip_low = 1.5", "below 1"],
    ),
    "critic-without-a-head": (
        settings("trainer.loss.name=ppo", "trainer.critic.init=model"),
        None,
        ["trainer.critic.init", "critic without a head", "score.weight: no such tensor", "a fresh head"],
    ),
    "critic-of-another-vocabulary": (
        settings("trainer.loss.name=ppo", "trainer.critic.init=critic"),
        value_model(vocab_size=999),
        ["trainer.critic.init", "critic of another vocabulary", "999"],
    ),
    "critic-of-another-tokenizer": (
        settings("trainer.loss.name=ppo", "trainer.critic.init=critic"),
        value_model(tokens={"a": 0}),
        ["trainer.critic.init", "critic of another tokenizer"],
    ),
    "critic-of-a-loss-without-one": (
        settings("trainer.critic.epochs=2"),
        None,
        ["trainer.critic", "settings of a critic", "'group'", "'dapo'", "'gae'"],
    ),
    "critic-option-range": (settings("trainer.loss.name=ppo", "trainer.critic.epochs=0"), None, ["critic.epochs", "0"]),
    "gae-option-range": (
        settings("trainer.advantages={name='gae', lam=1.5}"),
        None,
        ["trainer.advantages", "'gae'", "lam = 1.5", "0 to 1"],
    ),
    "whitened-without-the-batch": (
        settings("pipeline.training=streamed", "trainer.loss.name=ppo"),
        None,
        ["trainer.advantages", "pipeline.training", "'streamed'", "'gae'", "whiten = false"],
    ),
    "whitened-without-the-batch-in-parts": (
        settings("pipeline.training={name='dynamic-batch', parts=2}", "trainer.loss.name=ppo"),
        None,
        ["trainer.advantages", "pipeline.training", "'dynamic-batch'", "'gae'", "whiten = false"],
    ),
    "loss-option-moved": (
        settings("trainer.options.clip_low=0.1"),
        None,
        ["trainer.options", "clip_low", "trainer.loss.clip_low"],
    ),
    "advantages-moved": (
        settings("trainer.options.divide_by_std=false"),
        None,
        ["trainer.options", "divide_by_std", "trainer.advantages", "'centred'"],
    ),
    "steps-of-a-streamed-batch": (
        settings("pipeline.training={name='streamed', parts=2}"),
        None,
        ["pipeline.training", "'parts'", "streamed"],
    ),
    "trainer-backend-unknown": (settings("trainer.backend=fdsp2"), None, ["trainer.backend", "fsdp2"]),
    "tensor-parallel-of-fsdp2": (
        settings("trainer.processes=2", "trainer.options.tensor_parallel=2"),
        None,
        ["trainer.backend", "tensor_parallel = 2 with backend fsdp2", "expected 1, or backend megatron"],
    ),
    "tensor-parallel-that-divides-no-heads": (
        settings("trainer.backend=megatron", "trainer.processes=4", "trainer.options.tensor_parallel=4"),
        None,
        [
            "trainer.backend",
            "found tensor_parallel = 4 and 2 heads",
            "a divisor of 4 processes of a cell, 2 heads",
        ],
    ),
    "engine-unknown": (settings("rollout.engine=vlm"), None, ["rollout.engine", "vllm"]),
    "engine-option-unknown": (settings("rollout.options.max_seqs=3"), None, ["max_seqs", "max_num_seqs"]),
    "no-replica": (settings("rollout.replicas=0"), None, ["rollout.replicas", "0"]),
    "site-unknown": (
        RUN,
        pools('name = "far"\ncount = 2\nsite = "wst"', sites="west = 1"),
        ["c.toml", "rollout.pools.0.site", "unknown site 'wst'", "did you mean 'west'"],
    ),
    "site-where-there-is-none": (
        RUN,
        pools('name = "far"\ncount = 2\nsite = "west"'),
        ["rollout.pools.0.site", "'west'", "relay.sites"],
    ),
    "site-without-relays": (RUN, pools(sites="west = 0"), ["relay.sites.west", "0"]),
    "pool-without-replicas": (RUN, pools('name = "far"\ncount = 0'), ["rollout.pools.0.count", "0"]),
    "pools-of-other-replicas": (
        RUN,
        pools('name = "far"\ncount = 3'),
        ["rollout.replicas", "rollout.pools", "found 2 replicas and 3 in the pools"],
    ),
    "pools-of-one-name": (RUN, pools('name = "far"', 'name = "far"'), ["rollout.pools", "found 2", "'far'"]),
    "pool-engine-option-unknown": (
        RUN,
        pools('name = "far"\ncount = 2\noptions = {max_seqs = 3}'),
        ["rollout.pools.0.options", "max_seqs", "did you mean 'max_num_seqs'"],
    ),
    "pool-of-two-sizes": (
        RUN,
        pools('name = "far"\ncount = 2\ntp = 2\noptions = {tensor_parallel_size = 1}'),
        ["rollout.pools.0.tp", "tensor_parallel_size", "found both"],
    ),
    "pool-key-unknown": (RUN, pools('name = "far"\ncont = 2'), ["rollout.pools.0.cont", "did you mean 'count'"]),
    "pool-of-a-device-that-is-not-here": (
        RUN,
        pools('name = "far"\ncount = 2\ndevice = "H20"'),
        ["rollout.pools.0.device", "'H20'", "no GPU here"],
    ),
    "executor-unknown": (settings("executor.name=slurm"), None, ["executor.name", "slurm"]),
    "peer-without-relays": (
        settings('checkpoint.domains=["disk", "peer"]'),
        None,
        ["checkpoint.domains", "relay.count", "1"],
    ),
    "peer-on-one-machine": (
        settings('checkpoint.domains=["disk", "peer"]', "relay.count=2", "executor.name=local"),
        None,
        ["checkpoint.domains", "executor.name", "local"],
    ),
    "peer-without-machines": (
        settings('checkpoint.domains=["disk", "peer"]', "relay.count=2"),
        None,
        ["checkpoint.domains", "1 machine", "executor.machines"],
    ),
    "machines-of-another-cluster": (
        settings("executor.machines=3", "executor.ray_address=10.0.0.1:6379"),
        None,
        ["executor.machines", "3", "cluster to join"],
    ),
    "machines-of-threads": (
        settings("executor.name=local", "executor.machines=3"),
        None,
        ["executor.machines", "executor.name", "local"],
    ),
    "ranks-of-threads": (
        settings("executor.name=local", "trainer.processes=2"),
        None,
        ["executor.name", "'local'", "trainer.processes", "2"],
    ),
    "standby-on-one-machine": (
        settings('pipeline.recovery={name = "role-based", standby = true}'),
        None,
        ["pipeline.recovery.standby", "1 machine", "executor.machines"],
    ),
    "standbys-too-few": (
        settings(
            'pipeline.recovery={name = "role-based", standby = true}', "executor.machines=3", "rollout.replicas=1"
        ),
        None,
        ["pipeline.recovery.standby", "1 replicas", "at least 2"],
    ),
    "more-cores-than-there-are": (
        settings("executor.device=cpu", "executor.trainer_gpus=1.0", "executor.replica_gpus=500.0"),
        None,
        ["executor.replica_gpus", "cores asked for", "executor.device = 'cpu'"],
    ),
    "standby-of-another-kind": (
        settings(
            'pipeline.recovery={name = "role-based", standby = true}',
            "executor.machines=3",
            'rollout.pools=[{name = "h20", count = 2, device = "H20"}]',
        ),
        None,
        ["pipeline.recovery.standby", "another kind", "h20"],
    ),
    "peer-without-disk": (settings('checkpoint.domains=["peer"]'), None, ["checkpoint.domains", "disk"]),
    "domain-unknown": (settings('checkpoint.domains=["tape"]'), None, ["checkpoint.domains", "tape", "disk"]),
    "fence-without-checkpoints": (
        settings("publish.fence=true", "checkpoint.every=3"),
        None,
        ["publish.fence", "checkpoint.every", "3", "every step"],
    ),
    "newer-weights-behind-a-fence": (
        settings("publish.fence=true", "checkpoint.newer_weights=true"),
        None,
        ["publish.fence", "checkpoint.newer_weights", "newer than the newest checkpoint"],
    ),
    "newer-weights-for-equal-bits": (
        settings("pipeline.deterministic=true", "checkpoint.newer_weights=true"),
        None,
        ["pipeline.deterministic", "checkpoint.newer_weights", "same bits"],
    ),
    "newer-weights-that-lost-precision": (
        settings("relay.codec=bf16", "checkpoint.newer_weights=true"),
        None,
        ["relay.codec", "bf16", "checkpoint.newer_weights", "delta"],
    ),
    "newer-weights-beside-a-critic": (
        settings("trainer.advantages=gae", "checkpoint.newer_weights=true"),
        None,
        ["trainer.advantages", "checkpoint.newer_weights", "critic"],
    ),
    "transport-unknown": (settings("relay.transport=rdma"), None, ["relay.transport", "rdma", "tcp"]),
    "codec-unknown": (settings("relay.codec=zip"), None, ["relay.codec", "zip", "delta"]),
    "seed-no-number": ([*RUN, "--seed", "x"], None, ["--seed", "'x'"]),
    # faults
    "fault-unreadable": ([*RUN, "--kill", "replica at 3"], None, ["replica at 3"]),
    "fault-of-no-role": ([*RUN, "--kill", "actor@3s"], None, ["actor", "replica"]),
    "fault-of-no-member": ([*RUN, "--kill", "replica:7@3s"], None, ["replica:7@3s"]),
    "fault-after-the-end": ([*RUN, "--kill", "replica@step99"], None, ["replica@step99", "4"]),
    # the machine
    "no-gpu": (settings("executor.device=cuda"), None, ["executor.device", "cuda"]),
    "too-few-gpus": (settings("executor.trainer_gpus=64"), None, ["executor.trainer_gpus", "64"]),
    "no-cluster": ([*RUN, "--ray-address", "127.0.0.1:9"], None, ["127.0.0.1:9"]),
    "no-address": ([*RUN, "--ray-address", "here"], None, ["here", "HOST:PORT"]),
    "too-little-memory": (settings("rollout.replicas=2000"), None, ["rollout.replicas", "2,000", "GB"]),
    "run-dir-in-use": ([*RUN, "--run-dir", "model"], None, ["model"]),
    "run-dir-a-file": ([*RUN, "--run-dir", "c.toml"], None, ["c.toml"]),
    "run-dir-below-a-file": ([*RUN, "--run-dir", "c.toml/run"], None, ["c.toml"]),
    # prompts
    "prompts-missing": (RUN, remove("train.jsonl"), ["train.jsonl"]),
    "prompts-empty": (RUN, write("train.jsonl", ""), ["train.jsonl"]),
    "prompts-a-folder": (settings("task.train=model"), None, ["model"]),
    "prompts-of-no-form": (settings("task.train=train.txt"), write("train.txt", ROW), ["train.txt", ".jsonl"]),
    "row-no-json": (RUN, write("train.jsonl", ROW + '{"prompt": "1 + 2 = ", "answer": "3"\n'), ["line 2", "column 37"]),
    "row-no-object": (RUN, write("train.jsonl", ROW + "[1]\n"), ["train.jsonl", "2"]),
    "row-without-prompt": (RUN, write("train.jsonl", '{"question": "1", "answer": "1"}\n'), ["train.jsonl", "prompt"]),
    "row-without-answer": (RUN, write("train.jsonl", '{"prompt": "1 + 1 = "}\n'), ["train.jsonl", "answer"]),
    "prompt-no-text": (RUN, write("train.jsonl", '{"prompt": 3, "answer": "1"}\n'), ["train.jsonl", "prompt"]),
    "prompt-blank": (RUN, write("train.jsonl", '{"prompt": " ", "answer": "1"}\n'), ["train.jsonl", "empty"]),
    "prompts-not-utf-8": (
        RUN,
        write("train.jsonl", ROW.encode() + b'{"prompt": "\xff", "answer": "1"}'),
        ["train.jsonl", "UTF-8"],
    ),
    "prompt-too-long": (
        RUN,
        write("train.jsonl", ROW + '{"prompt": "' + "1 + " * 200 + '1 = ", "answer": "201"}\n'),
        ["train.jsonl", "2", "tokens"],
    ),
    "parquet-cut": (settings("task.train=train.parquet"), write("train.parquet", b"PAR1xxxx"), ["train.parquet"]),
    "row-of-no-verifier": (
        RUN,
        write("train.jsonl", ROW.replace("}", ', "verifier": "numerc"}')),
        ["train.jsonl", "numerc", "numeric"],
    ),
    "csv-row-too-short": (
        settings("task.train=train.csv"),
        write("train.csv", "prompt,answer\n1 + 1 =,2\n1 + 2 =\n"),
        ["train.csv, line 3", "found 1 values, expected 2"],
    ),
    "csv-of-other-columns": (
        settings("task.train=train.csv"),
        write("train.csv", "question,answer\n1 + 1 =,2\n"),
        ["train.csv, line 2", "question", "'prompt'"],
    ),
    "dataset-without-split": (settings("task.train=hf:openai/gsm8k"), None, ["hf:openai/gsm8k", "SPLIT"]),
    "dataset-folder-missing": (settings("task.train=hf:./gone:train"), None, ["hf:./gone:train", "folder"]),
    "messages-of-no-role": (
        RUN,
        write("train.jsonl", ROW + '{"prompt": [{"role": "usr", "content": "1 + 2"}], "answer": "3"}\n'),
        ["train.jsonl, line 2", "message 1", "'usr'", "did you mean 'user'"],
    ),
    "messages-without-content": (
        RUN,
        write("train.jsonl", ROW + '{"prompt": [{"role": "user"}], "answer": "3"}\n'),
        ["train.jsonl, line 2", "message 1", "no content"],
    ),
    "messages-without-template": (
        RUN,
        write("train.jsonl", '{"prompt": [{"role": "user", "content": "1 + 2"}], "answer": "3"}\n'),
        ["model.path", "chat template"],
    ),
    "prompts-twice": (
        ["run", "s.toml"],
        write("s.toml", CONFIG.replace('verifier = "', 'sources = [{path = "train.jsonl"}]\nverifier = "')),
        ["s.toml", "'train' and 'sources'"],
    ),
    "source-without-share": (
        ["run", "s.toml"],
        write("s.toml", CONFIG.replace('train = "train.jsonl"', 'sources = [{path = "train.jsonl", share = 0}]')),
        ["s.toml", "task.sources.0.share", "greater than 0"],
    ),
    "overlong-unknown": (settings("task.overlong=cut"), None, ["task.overlong", "'cut'", "'drop'"]),
    "held-out-trained-on": (settings("task.held_out=train.jsonl"), None, ["train.jsonl"]),
    # rounds, and devices that change hands
    "rounds-with-a-factor-below-1": (
        tail("prompt_factor = 0.9"),
        None,
        ["pipeline.batching", "prompt_factor=0.9", "expected a finite number of at least 1"],
    ),
    "rounds-of-no-prompts": (
        settings("pipeline.batching=tail-batching", "pipeline.prompts_per_step=0"),
        None,
        ["pipeline.prompts_per_step", "found 0"],
    ),
    "rounds-with-a-share-of-0": (
        tail("shares = [1.0, 0.0]"),
        None,
        ["pipeline.batching", "(1.0, 0.0)", "a share above 0"],
    ),
    "rounds-under-an-admission-that-knows-none": (
        settings("pipeline.batching=tail-batching", "pipeline.admission=inherent"),
        None,
        ["pipeline.batching", "Inherent", "on-policy or one-step"],
    ),
    "rounds-in-parts-of-a-fixed-size": (
        settings(
            "pipeline.batching=tail-batching",
            "pipeline.admission=on-policy",
            "pipeline.training=dynamic-batch",
            "pipeline.training.parts=2",
        ),
        None,
        ["pipeline.batching", "DynamicBatch", "streamed"],
    ),
    "devices-lent-to-no-cell": (
        settings("pipeline.provisioning=scale-down"),
        None,
        ["pipeline.provisioning", "trainer.colocated = false", "at least 2"],
    ),
    "a-fault-as-devices-change-hands-that-never-do": (
        settings('faults=["replica@step1:sleep"]'),
        None,
        ["faults", "replica@step1:sleep", "'static'", "lends devices"],
    ),
    "devices-shared-while-both-compute": (
        settings("trainer.colocated=true", "pipeline.admission=one-step"),
        None,
        ["trainer.colocated", "'one-step'", "'on-policy'"],
    ),
    "devices-resized-and-lent-to-no-cell": (
        settings("pipeline.provisioning=adaptive-tp-scale-down"),
        None,
        ["pipeline.provisioning", "'adaptive-tp-scale-down'", "trainer.colocated = false", "at least 2"],
    ),
    "a-judge-on-devices-that-are-lent": (
        settings(
            "pipeline.provisioning=scale-down",
            "pipeline.training=streamed",
            "pipeline.admission=on-policy",
            "pipeline.batching=tail-batching",
            "trainer.colocated=true",
            "trainer.cells=2",
            "trainer.processes=2",
            "executor.scorer_gpus=0.2",
            "reward.judge.model=model",
            "reward.judge.template={response}",
        ),
        None,
        ["executor.scorer_gpus", "found 0.2 of a device for the judge", "'scale-down'", "expected whole devices"],
    ),
    "no-device-is-free": (
        settings('pipeline.provisioning={name = "balanced", devices = 2}'),
        None,
        ["c.toml", "pipeline.provisioning", "devices=2 for 2 replicas of 1", "none is free", "at least 3"],
    ),
    "no-replica-that-was-measured-fits": (
        settings(
            "pipeline.provisioning=balanced",
            "pipeline.provisioning.replica_costs=[[2, 30, 0.0, 0.0, 0.0, 1.0]]",
            "pipeline.provisioning.lengths=[40]",
            "pipeline.provisioning.train_s=1.0",
        ),
        None,
        [
            "c.toml",
            "pipeline.provisioning",
            "no replica of 2 devices",
            "the longest response, 40 tokens",
            "expected more",
        ],
    ),
    "a-trainer-that-was-not-measured": (
        settings('pipeline.provisioning={name = "balanced", training_times = [[2, 9.0], [4, 5.0]]}'),
        None,
        ["c.toml", "pipeline.provisioning", "no row of 1 devices in training_times", "expected one beside 2, 4"],
    ),
    "stages-balanced-on-the-same-devices": (
        settings("pipeline.provisioning=balanced", "pipeline.admission=on-policy", "trainer.colocated=true"),
        None,
        ["trainer.colocated", "pipeline.provisioning", "'balanced'", "devices of their own"],
    ),
    "stages-balanced-with-unlike-replicas": (
        settings(
            "pipeline.provisioning=balanced",
            'rollout.pools=[{name = "a", count = 1}, {name = "b", count = 1}]',
        ),
        None,
        ["rollout.pools", "found 2 pools", "'balanced'", "pipeline.provisioning.pool", "one pool"],
    ),
    # the sizes of replicas; the model has two heads
    "replicas-that-lend-beyond-heads": (
        settings('pipeline.provisioning={name = "adaptive-tp-scale-down", short = 4}'),
        None,
        ["c.toml", "pipeline.provisioning", "short=4", "expected one of 1, 2", "2 heads"],
    ),
    "replicas-beyond-heads": (
        sizes("short = 4"),
        None,
        ["c.toml", "pipeline.provisioning", "short=4", "expected one of 1, 2", "2 heads"],
    ),
    "replicas-beyond-the-machine": (
        sizes("long = 2, devices_per_machine = 1"),
        None,
        ["pipeline.provisioning", "long=2", "expected one of 1:", "1 devices"],
    ),
    "tensor-parallel-of-none": (
        settings("rollout.options.tensor_parallel_size=0"),
        None,
        ["tensor_parallel_size", "0"],
    ),
    # the model
    "model-missing": (settings("model.path=nowhere"), None, ["nowhere"]),
    "model-without-config": (RUN, remove("model/config.json"), ["config.json"]),
    "model-config-no-json": (RUN, write("model/config.json", "{"), ["config.json"]),
    "model-without-tokenizer": (RUN, remove("model/tokenizer.json"), ["tokenizer"]),
    "tokenizer-cut": (RUN, cut("model/tokenizer.json"), ["tokenizer.json"]),
    "weights-missing": (RUN, remove("model/model.safetensors"), ["model"]),
    "weights-cut": (RUN, cut("model/model.safetensors"), ["model.safetensors"]),
    # the verifier
    "verifier-unknown": (settings("task.verifier=numerc"), None, ["task.verifier", "numerc", "numeric"]),
    "verifier-file-missing": (settings("task.verifier=none.py:check"), None, ["task.verifier", "none.py"]),
    "verifier-function-missing": (settings("task.verifier=verify.py:check"), None, ["verify.py", "check"]),
    "verifier-module-missing": (settings("task.verifier=no_such_module:check"), None, ["no_such_module"]),
    "verifier-raises": (settings("task.verifier=verify.py:raises"), None, ["task.verifier", "no such digit"]),
    "verifier-says-text": (settings("task.verifier=verify.py:text"), None, ["task.verifier", "right"]),
    "verifier-hangs": (settings("task.verifier=verify.py:hangs", "deadlines.verify_s=1"), None, ["task.verifier", "1"]),
    # the environment
    "environment-unknown": (settings("environment.name=pyton"), None, ["pyton", "python"]),
    "environment-file-missing": (settings("environment.name=none.py:Mine"), None, ["none.py"]),
    "interpreter-missing": (
        settings("environment.name=openenv", "environment.python=nowhere/python"),
        None,
        ["environment.python", "nowhere/python"],
    ),
    "server-missing": (
        settings("environment.name=openenv", 'environment.options.url="http://127.0.0.1:9"'),
        None,
        ["environment", "http://127.0.0.1:9"],
    ),
    "environment-without-rows": (
        ["run", "c.toml", "--set", "environment.name=speaks.py:Speaks"],
        lambda: (write("speaks.py", SPEAKS)(), write("c.toml", NO_FILES)()),
        ["key 'task'", "speaks.py:Speaks", "no rows of its own"],
    ),
    # other commands
    "status-of-no-run": (["status", "model"], None, ["model"]),
    "report-of-no-run": (["report", "model"], None, ["model"]),
    "audit-of-no-run": (["audit", "model"], None, ["model"]),
    "explain-of-no-run": (["explain", "model", "0.0"], None, ["model"]),
    "simulate-nothing": (["simulate", "fleet.toml"], None, ["fleet.toml"]),
    "simulate-a-laptop": (["simulate", "c.toml"], None, ["fleet"]),
    "compare-with-nothing": (["compare", "model", "nowhere"], None, ["model"]),
    "plan-of-no-gpus": (["plan", "c.toml", "--gpus", "0"], None, ["--gpus"]),
    "fuzz-of-no-policy": (["fuzz", "--policy", "routing=nobody", "--seeds", "1"], None, ["nobody"]),
    "reproduce-no-paper": (["reproduce", "lamina"], None, ["lamina", "laminar"]),
    "init-over-files": (["init", "."], None, ["train.jsonl"]),
    "command-unknown": (["ran", "laminar"], None, ["ran"]),
}
MOST_LINES = 12


def tree(root):
    """Every file with its content, and every folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path(root).rglob("*")}


def test_the_project_itself_is_right(project, capsys):
    assert main([*RUN, "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cases(60)
def test_bad_input_is_named_and_leaves_nothing(project, capsys, kind):
    arguments, prepare, names = KINDS[kind]
    if prepare is not None:
        prepare()
    before = tree(project)
    dry = (
        ["--dry-run"] if arguments[0] == "run" and "--resume" not in arguments else []
    )  # what is not noticed is not to start
    status = main([*arguments, *dry])
    out, err = capsys.readouterr()
    said = out + err
    assert status == 2, said
    assert "Traceback" not in said
    assert [name for name in names if name not in said] == [], said
    assert 1 <= len(said.strip().splitlines()) <= MOST_LINES, said
    assert tree(project) == before


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.deep if kind in RARELY else ()) for kind in BEGINNINGS]
)
def test_an_environment_that_cannot_begin_is_named_before_anything_starts(project, capsys, kind):
    arguments, names = BEGINNINGS[kind]
    write("speaks.py", SPEAKS)()
    before = tree(project)
    status = main([*arguments, "--executor", "local", "--plain", "--run-dir", "begun"])
    said = capsys.readouterr().err
    assert status == 2, said
    assert [name for name in names if name not in said] == [], said
    assert 1 <= len(said.strip().splitlines()) <= MOST_LINES, said
    assert {name: found for name, found in tree(project).items() if "__pycache__" not in name} == before


def test_an_engine_without_seeds_is_refused_where_noise_is_drawn_again(project, capsys, monkeypatch):
    class Seedless(EnginePlugin):
        def __call__(self, model_path, options):
            raise AssertionError("no engine is built")

    monkeypatch.setattr("tailrace.rollout.engine_selection.load", lambda group, name: Seedless())
    batching = 'pipeline.batching={name = "tail-batching", redraw = "same-noise"}'
    before = tree(project)
    status = main([*settings(batching, "pipeline.admission=on-policy", "rollout.engine=transformers"), "--dry-run"])
    out, err = capsys.readouterr()
    assert status == 2
    (line,) = [line for line in (out + err).splitlines() if "seeds" in line]
    assert "pipeline.batching" in line
    assert "rollout.engine" in line
    assert "'transformers', which lacks seeds" in line
    assert tree(project) == before
