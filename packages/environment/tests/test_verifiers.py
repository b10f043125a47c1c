"""The adapter for verifiers.v1, against the released package in an interpreter of its own, as docs/environments.md says."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.environment import SetupError, examine_environment

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MODEL = """
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
)
tokenizer.train_from_iterator(["user: Guess a number. assistant: more less"], trainer)
tokenizer.save("model/tokenizer.json")
"""


def test_without_verifiers_it_is_one_line():
    with pytest.raises(SetupError) as found:
        examine_environment("verifiers", {"taskset": "guess", "tokenizer": "model"})
    assert re.search(r"cannot be had: \w*Error: ", str(found.value))
    assert len(str(found.value).splitlines()) == 1


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """A folder as the page says, with a tokenizer and a chat template in ``model``."""
    if shutil.which("uv") is None or not PAGE.exists():
        pytest.skip("it needs uv, to install the released package, and the page in the repository")
    root = tmp_path_factory.mktemp("verifiers")
    command = re.search(r"\$ (uv venv theirs .* verifiers==.*)", PAGE.read_text())[1]
    subprocess.run(command, shell=True, cwd=root, check=True, capture_output=True, timeout=400)
    (root / "model").mkdir()
    subprocess.run([root / "theirs" / "bin" / "python", "-c", MODEL], cwd=root, check=True, timeout=200)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (root / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    return root


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_the_pages_example_and_the_traces_mask(theirs):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (taskset,) = [each for each in blocks if "vf.Taskset" in each]
    (example,) = [each for each in blocks if '"verifiers", OPTIONS' in each]
    assert max(len(taskset.splitlines()), len(example.splitlines())) < 40
    (theirs / "guess").mkdir()
    (theirs / "guess" / "__init__.py").write_text(taskset)
    example = example.replace(
        "        print(last.done", "        print(json.dumps(dict(last.metadata)))\n        print(last.done"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{example}"], cwd=theirs, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    prompt, second, trace, last = done.stdout.splitlines()
    assert prompt == "['user: Guess a number.<|endoftext|>', 'assistant: ']"
    assert second == "['', 'user: more<|endoftext|>', 'assistant: ']"
    trace = json.loads(trace)
    assert last == f"True 0.5 {sum(trace['mask'])} {len(trace['token_ids'])}"
    _check_mask(theirs, trace)


def _check_mask(theirs, trace):
    """The trace's mask, beside an independent reference: each turn's own tokens and the end token are the model's."""
    code = """
import json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file("model/tokenizer.json")
parts = [("user: Guess a number.<|endoftext|>\\nassistant: ", 0), ("5<|endoftext|>", 1), ("\\nuser: more<|endoftext|>\\nassistant: ", 0), ("7<|endoftext|>", 1)]
ids = [(token, kept) for text, kept in parts for token in tokenizer.encode(text).ids]
print(json.dumps(ids))
"""  # noqa: E501
    found = subprocess.run(
        [theirs / "theirs" / "bin" / "python", "-c", code], cwd=theirs, capture_output=True, text=True, check=True
    )
    assert [list(pair) for pair in zip(trace["token_ids"], trace["mask"], strict=True)] == json.loads(found.stdout)
