"""Conversations as tokens, beside plain transformers: the whole, and what each next request has beyond the turn before."""

import contextlib
import json
import random
from functools import cache

import pytest
from chat_model import CHATML, write_model

from tailrace.environment.chat_template import ChatTemplate, TemplateError

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
HEADERS = (
    "{{ bos_token }}{% for m in messages %}\n    {%- if m.role == 'system' %}\n<<{{ m.content | trim }}>>\n"
    "    {%- elif m.role == 'assistant' %}\n[A]{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}\n"
    "    {%- else %}\n[{{ m.role }}]{{ m.content | trim }}\n    {%- endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[A]{% endif %}"
)
TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = (  # shows the thoughts of the last turn alone, as Qwen3's template does
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ("12", "more", " less", "a b", "\n\n", "Zürich", "  ", "345", "<think>", "x")


def conversation(draw, turns):
    """Messages of a random conversation that ends before the model's turn, with those of the model among them."""
    said = [{"role": "system", "content": "Be brief."}] if draw.random() < 0.5 else []
    for turn in range(turns):
        said.append({"role": "user", "content": "".join(draw.choices(WORDS, k=draw.randint(1, 6)))})
        if turn < turns - 1:
            said.append({"role": "assistant", "content": "".join(draw.choices(WORDS, k=draw.randint(1, 6)))})
    return said


@cache
def plain_tokenizer(folder):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def reference(folder, messages, template=None):
    """What plain transformers makes of a conversation."""
    tokenizer = plain_tokenizer(folder)
    given = {} if template is None else {"chat_template": template}
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **given)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "template", [PLAIN, HEADERS, CHATML, TOOLS, FORGETS], ids=["plain", "headers", "chatml", "tools", "forgets"]
)
def test_a_prompt_is_what_transformers_makes_of_it(tmp_path, template):
    write_model(tmp_path / "model", template)
    ours = ChatTemplate(str(tmp_path / "model"))
    for seed in range(30):
        messages = conversation(random.Random(seed), 1 + seed % 4)
        assert ours.prompt(messages) == reference(tmp_path / "model", messages), f"seed {seed}"


@pytest.mark.parametrize("template", [HEADERS, CHATML, TOOLS], ids=["headers", "chatml", "tools"])
def test_turn_by_turn_it_is_what_transformers_makes_of_the_whole(tmp_path, template):
    """Where the model's tokens are those that its text is encoded to; elsewhere nothing may encode them, and nothing does."""
    tokenizer = write_model(tmp_path / "model", template)
    ours, end = ChatTemplate(str(tmp_path / "model")), tokenizer.token_to_id("<|im_end|>")
    for seed in range(30):
        messages = conversation(random.Random(f"whole {seed}"), 4)
        tokens, known = [], 0
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, said = messages[:place], [*tokenizer.encode(message["content"], add_special_tokens=False).ids, end]
            tokens += ours.beyond(before, known - 1, tokens, ()) if known else ours.prompt(before)
            assert tokens == reference(tmp_path / "model", before), f"seed {seed}"
            assert ours.text(said) == message["content"]
            tokens, known = tokens + said, place + 1
        tokens += ours.beyond(messages, known - 1, tokens)
        assert tokens == reference(tmp_path / "model", messages), f"seed {seed}"


def test_what_the_model_said_stays_as_it_was(tmp_path):
    """Other tokens than its text would have, thoughts that the template forgets, and a turn without its end."""
    tokenizer = write_model(tmp_path / "model", FORGETS)
    ours = ChatTemplate(str(tmp_path / "model"))
    apart = [tokenizer.token_to_id(digit) for digit in "12"]
    assert tokenizer.encode("12").ids != apart
    end = tokenizer.token_to_id("<|im_end|>")
    thought = tokenizer.encode("<think>x</think>").ids
    talk = [
        {"role": "user", "content": "x"},
        ours.message([*thought, *apart, end], (), False, 1),
        {"role": "user", "content": "more"},
    ]
    assert talk[1]["content"] == "<think>x</think>12"
    after = tokenizer.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n").ids
    assert ours.beyond(talk, 1, [*thought, *apart, end]) == after
    assert ours.beyond(talk, 1, apart) == [end, *after]
    other = tokenizer.token_to_id("<|endoftext|>")
    assert ours.beyond(talk, 1, [*apart, other]) == [end, *after]


def test_whatever_a_later_message_says_comes_whole(tmp_path):
    """Also the words that mark the model's turn while the template renders it."""
    tokenizer = write_model(tmp_path / "model")
    ours, said = ChatTemplate(str(tmp_path / "model")), "_MARK = 'tailrace-turn', tailrace-turn-- and more"
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": said}]
    end = tokenizer.token_to_id("<|im_end|>")
    after = f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    assert ours.beyond(talk, 1, [end]) == tokenizer.encode(after).ids


def test_half_of_a_character_is_a_question_mark(tmp_path):
    """Harnesses cut the answers of tools by UTF-16 units, and a tokenizer refuses what is left of the last one."""
    write_model(tmp_path / "model")
    ours = ChatTemplate(str(tmp_path / "model"))
    cut, shown = ([{"role": "user", "content": content}] for content in ("more \ud83d", "more ?"))
    assert ours.prompt(cut) == ours.prompt(shown)


def test_tool_calls_are_read_and_written(tmp_path):
    tokenizer = write_model(tmp_path / "model", TOOLS)
    ours = ChatTemplate(str(tmp_path / "model"))
    assert ours.takes_tools
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    said = [*tokenizer.encode(f"So.\n{call}\n{call}").ids, tokenizer.token_to_id("<|im_end|>")]
    message = ours.message(said, (), True, 3)
    assert message["content"] == "So."
    assert [each["id"] for each in message["tool_calls"]] == ["call_3_0", "call_3_1"]
    assert [json.loads(each["function"]["arguments"]) for each in message["tool_calls"]] == [{"a": 1}] * 2
    talk = [{"role": "user", "content": "x"}, message, {"role": "tool", "tool_call_id": "call_3_0", "content": "12"}]
    tail = "<|im_end|>\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert ours.beyond(talk, 1, said) == tokenizer.encode(tail).ids[1:]
    read = {**message, "tool_calls": [_objects(each) for each in message["tool_calls"]]}  # as transformers wants them
    assert ours.prompt(talk) == reference(tmp_path / "model", [talk[0], read, talk[2]])  # a conversation that begins so
    assert "tool_calls" not in ours.message(said, (), False, 3)
    for broken in (
        "<tool_call>{</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>",
    ):
        assert ours.message(tokenizer.encode(broken).ids, (), True, 1) == {"role": "assistant", "content": broken}


def test_arguments_of_a_tool_call_are_any_text(tmp_path):
    """No session ends by what the model writes, however nested, nor by a harness that leaves arguments out."""
    tokenizer = write_model(tmp_path / "model", TOOLS)
    ours = ChatTemplate(str(tmp_path / "model"))
    for depth in (100, *range(880, 1000), 100_000):
        nested = depth * "[" + depth * "]"
        for arguments in (json.dumps(nested), nested):
            said = tokenizer.encode(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>').ids
            message = ours.message(said, (), True, 1)
            with contextlib.suppress(TemplateError):  # there may be no words for it
                ours.prompt([message])
    without = {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}
    assert '"name": "add"' in ours.text(ours.prompt([without]))


@pytest.mark.parametrize("said", ["<tool_call>" + 10_000 * " ", 10_000 * "<tool_call>\n"])
def test_a_turn_that_repeats_itself_is_read_in_one_pass(tmp_path, said):
    """The worker's other sessions stand still meanwhile, and a worker that stands still is killed."""
    tokenizer = write_model(tmp_path / "model", TOOLS)
    ours = ChatTemplate(str(tmp_path / "model"))
    assert ours.message(tokenizer.encode(said).ids, (), True, 1) == {"role": "assistant", "content": said}


def _objects(call):
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def test_a_message_ends_at_a_stop(tmp_path):
    tokenizer = write_model(tmp_path / "model")
    ours = ChatTemplate(str(tmp_path / "model"))
    said = tokenizer.encode("more 12 less 345").ids
    assert ours.message(said, ("345", " less", "none"), False, 1)["content"] == "more 12"


def test_what_a_template_refuses_is_one_line(tmp_path):
    write_model(
        tmp_path / "model",
        "{{ raise_exception('no\nsystem') if messages[0].role == 'system' else messages[0].content }}",
    )
    ours = ChatTemplate(str(tmp_path / "model"))
    with pytest.raises(TemplateError, match="refuses these messages: no system"):
        ours.prompt([{"role": "system", "content": ""}])
    with pytest.raises(TemplateError, match="does not show the model's turn"):
        ours.beyond([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], 1, [1])


def test_a_template_has_no_way_out(tmp_path):
    write_model(tmp_path / "model", "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateError):
        ChatTemplate(str(tmp_path / "model")).prompt([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("template", "found"), [("", "found no chat template"), ("{% if", "found a chat template that is none")]
)
def test_no_template_is_one_line(tmp_path, template, found):
    write_model(tmp_path / "model", template)
    with pytest.raises(ValueError, match=found):
        ChatTemplate(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"expected the model's directory with tokenizer\.json"):
        ChatTemplate(str(tmp_path / "nowhere"))
