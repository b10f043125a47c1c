import re
from pathlib import Path

from tailrace.trainer import checkpoints, load_weights_file


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "README.md", "exec"), {})
    loss, norm = map(float, capsys.readouterr().out.split()[-2:])
    assert loss < 0.149  # less than before the first step
    assert norm > 0
    assert list(checkpoints("checkpoints")) == [3]
    assert "model.embed_tokens.weight" in dict(load_weights_file("checkpoints/v3"))
