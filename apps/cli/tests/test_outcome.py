"""The last lines of a run say which scripted faults did not strike."""

from tailrace.cli.console import plain_console
from tailrace.cli.runs.controller_watcher import show_outcome
from tailrace.controller.controller import Controller
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.figures.summary import summarise


def printed(tmp_path, **extra):
    config = RunConfig.model_validate({"task": {"name": "long-chain-sum"}})
    run = Controller(build_spec(config)).view
    found = summarise(config, run, (), audit=None, lengths=(), wall_s=1.0, training_s=1.0, extra=extra)
    console = plain_console(width=120, record=True, file=(tmp_path / "printed").open("w"))
    show_outcome(found, RunDirectory(tmp_path), console)
    return console.export_text().rstrip().splitlines()


def test_faults_that_did_not_strike_are_the_last_line(tmp_path):
    lines = printed(tmp_path, faults=[{}, {}], faults_not_struck=["replica:r5@60s", "trainer@step3:load"])
    assert lines[-1] == "scripted faults that did not strike: replica:r5@60s, trainer@step3:load"
    assert any(line.split() == ["faults", "2", "struck,", "2", "did", "not"] for line in lines)


def test_nothing_is_said_of_faults_where_there_were_none(tmp_path):
    lines = printed(tmp_path, faults=[], faults_not_struck=[])
    assert not any(line.split()[:1] == ["faults"] or "did not strike" in line for line in lines)


def test_what_looks_like_markup_is_told_as_it_is(tmp_path):
    tag = "[closed] 1 [/INST]"
    prompts = {"admitted": 1, "trained": 0, "filtered": {}, "failed_because": {"not-scored": 1}}
    lines = printed(tmp_path, prompts={**prompts, "failed_words": {"not-scored": tag}}, trackers={"mine": tag})
    assert sum(tag in line for line in lines) == 2
