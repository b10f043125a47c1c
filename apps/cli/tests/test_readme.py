"""The front page's example behaves as printed."""

from pathlib import Path

from tailrace.cli.main import main

README = Path(__file__).parents[1] / "README.md"


def test_the_mistake_on_the_front_page(capsys):
    command, printed = README.read_text().split("## Mistakes")[1].split("```console\n$ tailrace ")[1].split("\n")[:2]
    assert main(command.split()) == 2
    begin, end = printed.split("...")
    found = capsys.readouterr().err.strip()
    assert found.startswith(begin.rstrip())
    assert found.endswith(end.removeprefix(", "))
