"""A whole run that trains an adapter: it alone is saved, whoever is killed comes back, and the audit finds the same bits.

It also asks for compiled layers where there is no compiler: that it had none is said wherever one looks.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.cli.main import main
from tailrace.pipeline.run.eventlog import read_log
from tailrace.rollout.testing.sglang_environment import sglang_python

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs PEFT")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ('trainer.adapter.targets=["c_attn"]',),
            "'trainer.adapter': found adapter targets c_attn, which the model lacks",
        ),
        (("trainer.backend=megatron",), "'trainer.backend': found an adapter of rank 8 with the backend 'megatron'"),
        (("trainer.processes=2",), "expected one process or no controls"),
        (("trainer.options.adapter={}",), "'trainer.options': found adapter"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_starts(tmp_path, capsys, settings, says):
    command = ["run", "laminar", "--dry-run", "--run-dir", str(tmp_path / "run"), "--set", "trainer.adapter.rank=8"]
    assert main([*command, *(word for one in settings for word in ("--set", one))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def trained(small_run):
    run = small_run(heads=2, kv_heads=1, head_dim=32)
    trainer = "adapter = { rank = 4, alpha = 8 }\noptions = { lr = 1e-2, threads = 1, compile = true }"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        run.train(trainer, "local", "--kill", "replica@step1:pull")  # while it loads an adapter
    return run


@pytest.mark.deep
def test_only_the_adapter_is_trained_saved_and_published(trained):
    run = trained
    summary = json.loads((run.directory / "summary.json").read_text())
    assert (summary["adapter"], summary["restarts"]["replica"]) == ("applied", 1)
    assert [fault["phase"] for fault in summary["faults"] if fault["role"] == "replica"] == ["pull"]
    lines = [json.loads(line) for line in (run.directory / "events.jsonl").read_text().splitlines()[1:]]
    pulls = [event for line in lines for event in line["events"] if event["is"] == "Pulled"]
    assert len(pulls) == summary["served_digests_checked"] >= 4
    assert {event["compared"] for event in pulls} == {1.0}, "all of the adapter, and of the base where it was read anew"
    saved = run.directory / "checkpoints" / "4"
    assert not list(saved.glob("model*.safetensors"))
    assert (saved / "adapter_model.safetensors").stat().st_size < 50_000
    changed = run.trained("--merge")
    assert changed
    assert all(name.endswith("proj.weight") for name in changed)


@pytest.mark.deep
def test_why_layers_are_not_compiled_stands_in_status_summary_and_report(trained, capsys):
    run = trained
    why = "found no C++ compiler (no-such-compiler), which torch.compile needs on a CPU"
    line = f"trainer 0: found compile = true with {run.model}: {why}; its layers are not compiled"
    summary, status = (json.loads((run.directory / f"{name}.json").read_text()) for name in ("summary", "status"))
    assert summary["warnings"] == [line]  # once, though the trainer that took the killed one's place said it too
    assert status["notes"] == [line]
    assert [incident["text"] for incident in status["incidents"]].count(line) == 2
    assert line in (run.directory / "report.html").read_text()
    assert main(["status", str(run.directory)]) == 0
    assert why in " ".join(capsys.readouterr().out.split())
    (run.directory / "summary.json").unlink()  # the log alone says it too
    assert main(["report", str(run.directory)]) == 0
    assert line in (run.directory / "report.html").read_text()


def on_sglang(python):
    """Words of the command line."""
    options = f"rollout.options={{ python = '{python}', device = 'cpu', max_model_len = 48, max_num_seqs = 16 }}"
    return ["--set", "rollout.engine=sglang", "--set", options]


def test_layers_to_which_the_engine_applies_no_adapter_are_merged_or_named_before_anything_starts(small_run, capsys):
    from safetensors.torch import load_file, save_file

    run = small_run(heads=2, kv_heads=1, head_dim=32)
    weights = load_file(run.model / "model.safetensors")
    weights["model.layers.0.mlp.shared_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"].clone()
    save_file(weights, run.model / "model.safetensors")
    command = ["run", str(run.write("adapter = { rank = 4 }")), "--dry-run", *on_sglang(sys.executable)]
    assert main([*command, "--set", "rollout.adapter=applied"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "found 'applied' and 'sglang', which applies no adapter to shared_proj, expected targets among q_proj" in line
    )
    for fits, says in (
        ('trainer.adapter.targets=["up_proj"]', "sglang, which applies the adapter"),
        ("rollout.adapter=merged", "sglang, into whose weights each adapter is merged"),
        ("rollout.adapter=auto", "sglang, into whose weights each adapter is merged"),
    ):
        assert main([*command, "--set", fits]) == 0
        assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_an_adapter_is_trained_beside_sglangs_own_server(small_run):
    run = small_run(heads=2, kv_heads=1, head_dim=32)
    words = on_sglang(sglang_python(Path(__file__).parents[1] / "tools" / "sglang"))
    words += ["--kill", "replica@step1:pull"]  # while it loads an adapter
    run.train("adapter = { rank = 4, alpha = 8 }\noptions = { lr = 1e-2, threads = 1 }", "local", *words)
    summary = json.loads((run.directory / "summary.json").read_text())
    assert (summary["adapter"], summary["restarts"]["replica"]) == ("applied", 1)
    log = read_log(run.directory / "events.jsonl")
    pulls = [event for instant in log for event in instant.events if isinstance(event, c.Pulled)]
    assert len(pulls) == summary["served_digests_checked"] >= 4
    assert {event.compared for event in pulls} == {1.0}
    assert run.trained("--merge") >= {"model.layers.1.self_attn.q_proj.weight"}


@pytest.mark.deep
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")
def test_a_pull_lets_responses_end_under_the_adapter_that_they_began_with(small_run):
    run = small_run(heads=4, kv_heads=2, head_dim=32)
    settings = ("rollout.engine=vllm", "rollout.adapter_versions=2", "pipeline.sync=interrupting")
    words = [word for setting in settings for word in ("--set", setting)]
    run.train("adapter = { rank = 4, alpha = 8 }\noptions = { lr = 1e-2, threads = 1 }", "local", *words)
    version, running, beside, interrupted = {}, {}, 0, 0
    for instant in read_log(run.directory / "events.jsonl"):
        for event in instant.events:
            match event:
                case c.Pulled():
                    version[event.replica] = event.version
                case c.Finished():
                    began = running.pop(event.trajectory, None)
                    beside += began is not None and began < version[event.replica]
                case c.Interrupted():
                    running.pop(event.trajectory, None)
                    interrupted += 1
        for command in instant.commands:
            if isinstance(command, c.Route):
                running.update({ref.trajectory: version[command.replica] for ref in command.trajectories})
    assert beside > 0, (beside, interrupted)
    assert json.loads((run.directory / "summary.json").read_text())["served_digests_checked"] >= 4
