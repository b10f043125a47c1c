"""The environment of a run: which one it is, what is wrong with it in one line, and the words of a chat template around it."""

import json
import sys
from datetime import date

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.observations import Glue
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.environment_setup import (
    chat_glue,
    check_environment,
    environment_of,
    environment_role,
    no_tool_prefix,
)
from tailrace.pipeline.run.prompts.chat import end_of_turn
from tailrace.pipeline.run.scripted_faults import check_faults


def config(**tables):
    return validate([("test", {"app": "laminar", **tables})])


TOOL = {"name": "tool-sums"}


def test_a_task_says_which_environment_answers_it():
    assert environment_of(config(task={"name": "long-chain-sum"})) is None
    assert environment_of(config(task=TOOL)) == "python"
    assert environment_of(config(task=TOOL, environment={"name": "mine.py:Mine"})) == "mine.py:Mine"
    assert environment_of(config(environment={"name": "mine.py:Mine"})) == "mine.py:Mine"


def test_a_mix_has_one_environment():
    mixed = config(task={"mix": {"tool-sums": 1, "long-chain-sum": 1}})
    with pytest.raises(ConfigError, match=r"tool-sums: python, long-chain-sum: none.*expected the same for all"):
        environment_of(mixed)


def test_the_pipeline_has_members_for_it_and_a_control_without_it():
    plain, tool = (build_spec(config(task=task)) for task in ({"name": "long-chain-sum"}, TOOL))
    assert (plain.environments, plain.environment_sessions) == (0, None)
    assert (tool.environments, tool.environment_sessions) == (1, 64)
    assert "no-tool" in tool.evaluation.first
    assert "no-tool" in tool.evaluation.last
    assert "no-tool" not in (*plain.evaluation.first, *plain.evaluation.last)
    assert no_tool_prefix(config(task=TOOL)) == "<answer>"
    assert "no-tool" not in build_spec(config(task=TOOL, evaluation={"controls": False})).evaluation.last


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"name": "pyton"}, "'pyton' in group tailrace.environment, expected one of "),
        ({"options": {"most_call": 1}}, "key 'environment.options': found the unknown option 'most_call'"),
        ({"options": {"most_calls": 0}}, "most_calls = 0, expected a whole number above 0"),
        ({"options": {"latency": {"mean": 1.0}}}, "found latency.mean, expected one of median, sigma, cap"),
        (
            {"name": "mine.py:Mine", "options": {"day": date(2026, 1, 1)}},
            "key 'environment.options': found no JSON values",
        ),
        ({"python": "/nowhere/python"}, "key 'environment.python': found '/nowhere/python', expected an interpreter"),
        ({"name": "nothing.py:Mine"}, "found no file 'nothing.py', expected one with the environment Mine"),
        ({"call_s": 900.0}, "keys 'environment.call_s' and 'deadlines.call_s': found 900 and 300 s"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_anything_starts(environment, said):
    with pytest.raises(ConfigError) as refused:
        check_environment(config(task=TOOL, environment=environment))
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_environment_of_a_file_and_another_interpreter_is_examined(tmp_path):
    path = tmp_path / "mine.py"
    methods = "".join(f"    def {name}(self, *_): pass\n" for name in ("reset", "step", "close"))
    path.write_text(f"class Mine:\n    def __init__(self, size=1): pass\n{methods}")
    for python in ({}, {"python": sys.executable}):
        check_environment(config(task={"train": "mine.jsonl"}, environment={"name": f"{path}:Mine", **python}))
        with pytest.raises(ConfigError, match="has no rows of its own"):
            check_environment(config(environment={"name": f"{path}:Mine", **python}))
        wrong = {"name": f"{path}:Mine", "options": {"colour": 1}, **python}
        with pytest.raises(ConfigError, match="colour") as refused:
            check_environment(config(environment=wrong))
        assert len(str(refused.value).splitlines()) == 1


def test_a_run_without_one_is_not_looked_at():
    check_environment(config(task={"name": "long-chain-sum"}, environment={"call_s": 900.0}))


def test_faults_may_name_it():
    for member in ("environment@60s", "environment:0@step1"):
        check_faults(config(task=TOOL, faults=[member]), lambda: False)
    with pytest.raises(ConfigError, match="found no environment in this run"):
        check_faults(config(task={"name": "long-chain-sum"}, faults=["environment@60s"]), lambda: False)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}" + CHATML
)
DEAF = "{% for m in messages %}{% if m.role == 'assistant' %}A{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"


@pytest.fixture
def chat_model(tmp_path):
    """A directory with a tokenizer and a chat template."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    def make(template):
        tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<|im_end|>": 1, "a": 2}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(["<|im_end|>"])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / "config.json").write_text("{}")
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return make


@pytest.mark.parametrize(("template", "role"), [(CHATML, "tool"), (NO_TOOLS, "user")])
def test_the_words_around_an_answer_are_what_the_template_writes_behind_a_turn(chat_model, template, role):
    glue = chat_glue(chat_model(template), (1,))
    assert glue == Glue(f"\n<|im_start|>{role}\n", "<|im_end|>\n<|im_start|>assistant\n")


def test_a_model_without_a_template_reads_an_answer_as_it_stands(chat_model):
    assert chat_glue(chat_model(None), (1,)) is None


def test_a_template_that_shows_no_answer_is_refused(chat_model):
    with pytest.raises(ConfigError, match="shows neither a tool's nor a user's message behind the model's turn"):
        chat_glue(chat_model(DEAF), (1,))


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (CHATML, (1,)),
        (NO_TOOLS, (1,)),
        (DEAF, (1,)),
        (None, ()),
        ("{{ raise_exception('never') }}", ()),
        ("{{ 1 }}", ()),
    ],
)
def test_the_tokens_with_which_a_template_ends_the_models_turn(chat_model, template, ends):
    assert end_of_turn(chat_model(template)) == ends


def test_the_role_gets_what_the_configuration_says(chat_model):
    table = {"workers": 3, "call_s": 5.0, "max_turns": 7, "options": {"most_calls": 4}}
    tool = config(task=TOOL, environment=table, rollout={"max_tokens": 99})
    (role,) = environment_role(tool, chat_model(None), (1,), {"A": "b"}).values()
    settings = role.settings
    assert (settings.environment, settings.workers, settings.max_turns) == ("python", 3, 7)
    assert (settings.max_tokens, settings.call_s, settings.python, settings.glue) == (99, 5.0, "", None)
    assert role.environment == {"A": "b"}
    assert environment_role(config(task={"name": "long-chain-sum"}), chat_model(None), (1,), {}) == {}
