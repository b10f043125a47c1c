"""Prompts that are chat messages get the model's chat template; what is wrong with them is told by row."""

import json

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.prompts.reading import TRAIN, read_files

pytest.importorskip("transformers", reason="it renders chat templates")

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% if m.name %} ({{ m.name }}){% endif %}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?", "name": "ann"}]


@pytest.fixture
def model(word_model):
    return word_model(context=60, template=TEMPLATE)


@pytest.fixture
def read(tmp_path, model):
    """Reads prompts as a run does; returns their texts and faults."""

    def run(*prompts, model=model, **task):
        (tmp_path / "t.jsonl").write_text(
            "".join(json.dumps({"prompt": each, "answer": "4"}) + "\n" for each in prompts)
        )
        table = {"train": str(tmp_path / "t.jsonl"), **task}
        found = read_files(validate([("mine", {"task": table, "rollout": {"max_tokens": 20}})]), model, into=tmp_path)
        texts = [json.loads(line)["prompt"] for line in (tmp_path / f"{TRAIN}.jsonl").read_text().splitlines()]
        return texts, [line.replace(f"{tmp_path}/", "") for line in found.faults]

    return run


def test_messages_are_rendered_and_text_is_used_as_it_stands(read):
    texts, faults = read(ASKED, "<user>raw</>")
    assert faults == []
    assert texts == ["<system>Be short.</><user>2 + 2? (ann)</><assistant>", "<user>raw</>"]


def test_text_is_a_users_message_if_so_wished(read):
    assert read("2 + 2?", ASKED[1:], chat=True) == (
        ["<user>2 + 2?</><assistant>", "<user>2 + 2? (ann)</><assistant>"], []
    )  # fmt: skip


def test_rendered_text_counts_against_the_context(read):
    long = [{"role": "user", "content": "a " * 40}]
    _, faults = read(long)
    (line,) = faults
    assert line.startswith("t.jsonl, line 1: found a prompt of ")
    texts, _ = read(long, overlong="truncate-left")
    assert texts[0].endswith("a </><assistant>")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "found no messages, expected at least one"),
        (["hello"], "message 1: found str, expected an object with 'role' and 'content'"),
        ([{"content": "hello"}], "message 1: found no role, expected one of system, developer, user, assistant, tool"),
        ([{"role": "usr", "content": "x"}], ("message 1: found the role 'usr', expected one of system, developer, user, "
         "assistant, tool; did you mean 'user'?")),
        ([ASKED[0], {"role": "user"}], "message 2: found no content, expected text"),
        ([{"role": "user", "content": None}], "message 1: found no content, expected text"),
        ([{"role": "user", "content": " "}], "message 1: found an empty content, expected text"),
        ([{"role": "user", "content": 3}], "message 1: found int as its content, expected text or a list of parts"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         "message 1, part 1: found the type 'image_url', expected 'text': nothing else is trained on"),
        ([{"role": "user", "content": ["x", {"type": "text"}]}],
         "message 1, part 2: found NoneType as its 'text', expected text"),
        ([{"role": "user", "content": []}], "message 1: found an empty content, expected text"),
        ([{"role": "assistant", "content": None, "tool_calls": "add(6, 2)"}, ASKED[1]],
         "message 1: found str as its 'tool_calls', expected a list of objects"),
        ([{"role": "assistant", "content": None}, ASKED[1]], "message 1: found no content, expected text"),
        ([*ASKED, {"role": "assistant", "content": "4"}], ("message 3: found the last one from 'assistant', expected one from "
         "user or tool that the model answers")),
        ([{"role": "tool", "content": "x"}], "the model's chat template refuses these messages: no tools here"),
    ],
)  # fmt: skip
def test_messages_that_are_wrong_are_told_by_row(read, messages, words):
    _, faults = read(ASKED, messages, {"role": "user"})
    assert faults == [
        f"t.jsonl, line 2: {words}",
        "t.jsonl, line 3: found dict in column 'prompt', expected text or a list of messages",
    ]


CALLS = "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
TOOLS = TEMPLATE.replace("{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}", "").replace(
    "</>", CALLS + "</>"
)


@pytest.mark.parametrize("arguments", [{"a": 6, "b": [2]}, '{"a": 6, "b": [2]}'])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_tool_call_has_no_content_and_its_arguments_are_an_object(read, model, content, arguments):
    (model / "chat_template.jinja").write_text(TOOLS)
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    call = {"type": "function", "id": "1", "function": {"name": "add", "arguments": arguments}}
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "6 + 2?", "image_url": None}, "Use a tool."]},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "1", "content": ""},
    ]
    assert read(messages) == (
        ['<system></><user>6 + 2?\nUse a tool.</><assistant>[add {"a": 6, "b": [2]}]</><tool></><assistant>'], []
    )  # fmt: skip


def test_a_template_that_wants_arguments_as_text_gets_them(read, model):
    (model / "chat_template.jinja").write_text(
        TOOLS.replace("c.function.arguments | tojson", "'' + c.function.arguments")
    )
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    for arguments in ({"a": 6}, '{"a": 6}'):
        call = {"function": {"name": "add", "arguments": arguments}}
        texts, faults = read([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "8"}])
        assert (texts, faults) == (['<assistant>[add {"a": 6}]</><tool>8</><assistant>'], [])


def test_a_model_without_a_template(read, model):
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    _, faults = read(ASKED, ASKED)
    assert faults == [
        ("key 'model.path': model: found no chat template, and prompts are chat messages: expected chat_template.jinja, or "
        "'chat_template' in tokenizer_config.json")
    ]  # fmt: skip
    (model / "chat_template.jinja").write_text(TEMPLATE)
    assert read(ASKED)[1] == []


def test_the_template_has_its_options(read, model):
    thinking = "{% if enable_thinking is defined and not enable_thinking %}<no thoughts>{% endif %}"
    (model / "chat_template.jinja").write_text(TEMPLATE.replace("<assistant>", f"<assistant>{thinking}"))
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert read(ASKED[1:])[0] == ["<user>2 + 2? (ann)</><assistant>"]
    options = {"enable_thinking": False}
    assert read(ASKED[1:], chat_options=options)[0] == ["<user>2 + 2? (ann)</><assistant><no thoughts>"]
    assert read(ASKED[1:], chat_options={**options, "add_generation_prompt": False})[0] == ["<user>2 + 2? (ann)</>"]
    (line,) = read(ASKED[1:], chat_options={"enable_thinkin": False})[1]
    assert line == (
        "key 'task.chat_options': found 'enable_thinkin', which the model's chat template does not use, expected one of "
        "add_generation_prompt, enable_thinking, raise_exception; did you mean 'enable_thinking'?"
    )
    with pytest.raises(
        ConfigError, match=r"'task.chat_options': .*expected: variables of the chat template, not 'tokenize'"
    ):
        read(ASKED, chat_options={"tokenize": True})


def test_a_conversation_gets_no_token_before_it(read, model, tmp_path):
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 0)])
    tokenizer.save(str(model / "tokenizer.json"))
    read(ASKED, "as it stands", chat=False)
    rows = [json.loads(line) for line in (tmp_path / f"{TRAIN}.jsonl").read_text().splitlines()]
    assert [row.get("before") for row in rows] == [None, [0]]


def test_a_small_model_has_none(read):
    (line,) = read(ASKED, ASKED, model=None)[1]
    assert line.startswith("key 'model.path': found none, and prompts are chat messages")
