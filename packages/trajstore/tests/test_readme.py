"""What the README shows, runs."""

import re
from importlib.util import find_spec
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run_and_print_what_the_text_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alone, after_a_crash, turns, prompts, torchrl = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    namespace = {"__name__": "readme"}
    exec(compile(alone, "README.md", "exec"), namespace)
    lost, kept, consumed = capsys.readouterr().out.splitlines()
    assert (lost, kept) == ("[]", "(7, 8)")
    assert "consumed_version=4" in consumed
    exec(compile(after_a_crash, "README.md", "exec"), namespace)
    held, partial, statuses, experience = capsys.readouterr().out.splitlines()
    assert (held, partial) == ("{'0.0': 1.0}", "{}")  # version 4 was lost with its trainer
    assert statuses == "{'0.0': <Status.COMPLETE: 'complete'>}"
    assert experience == "0.0 (7, 8, 9) 1.0"
    exec(compile(turns, "README.md", "exec"), namespace)
    assert capsys.readouterr().out == "(7, 8, 30, 31)\n"
    Path("train.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "2 + 2", "answer": "4"}\n')
    exec(compile(prompts, "README.md", "exec"), namespace)
    assert capsys.readouterr().out.splitlines()[-1] == "10"
    if find_spec("torchrl") is not None:  # the extra
        exec(compile(torchrl, "README.md", "exec"), namespace)
        assert capsys.readouterr().out.splitlines() == [
            "2.0 2.1 [[5, 6, 7, 8, 9], [0, 0, 5, 6, 7]]",
            "1 False",  # one of the first example, half a group
        ]
