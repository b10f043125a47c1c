"""What `tools/words` refuses."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_fragments_and_shared_names_are_named(tmp_path):
    loader = SourceFileLoader("words", str(ROOT / "tools/words"))
    words = module_from_spec(spec_from_loader("words", loader))
    loader.exec_module(words)
    first, second = (tmp_path / f"packages/{name}/src/tailrace/{name}/all.py" for name in "ab")
    for path in (first, second):
        path.parent.mkdir(parents=True)
    first.write_text(
        '"""Of all."""\n\nclass Pool:\n    """A pool."""\n\n    size = 1\n    """As bytes."""\n\n'
        'class _Own:\n    """Its own."""\n\ndef of(count):\n    """Offset of a count."""\n    "text" if count else ""\n'
    )
    second.write_text('"""A file."""\n\nclass Pool:\n    """Another pool."""\n\nclass _Own:\n    """ """\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/check").write_text("#!/usr/bin/env bash\n")
    (tmp_path / "tools/say").write_text('#!/usr/bin/env python\n"""Those."""\n')
    (tmp_path / "conftest.py").write_text(
        '"""With a preposition, a sentence may begin."""\n\ndef own():\n    """Of all."""\n'
    )
    shared = ", ".join(f"packages/{name}/src/tailrace/{name}/all.py:3" for name in "ab")
    assert list(words.faults(tmp_path)) == [
        "packages/a/src/tailrace/a/all.py:1: the docstring begins with 'Of'",
        "packages/a/src/tailrace/a/all.py:7: the docstring begins with 'As'",
        "conftest.py:4: the docstring begins with 'Of'",
        "tools/say:2: the docstring begins with 'Those'",
        f"{shared}: found a class Pool in each, expected a name of its own",
    ]
