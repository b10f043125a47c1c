"""The front page's example behaves as printed."""

from pathlib import Path

from tailrace.cli.app import app
from tailrace.cli.main import main

README = Path(__file__).parents[1] / "README.md"


def test_every_command_is_in_the_table():
    page = README.read_text()
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    commands = [command.name for command in app.registered_commands]
    commands += [f"{name} {each.name}" for name, group in groups.items() for each in group.registered_commands]
    assert len(commands) > 25
    assert [name for name in commands if f"`tailrace {name}" not in page] == []


def test_the_mistake_on_the_front_page(capsys):
    command, printed = README.read_text().split("## Mistakes")[1].split("```console\n$ tailrace ")[1].split("\n")[:2]
    assert main(command.split()) == 2
    begin, end = printed.split("...")
    found = capsys.readouterr().err.strip()
    assert found.startswith(begin.rstrip())
    assert found.endswith(end.removeprefix(", "))
