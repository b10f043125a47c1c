"""What the documents list is what there is."""

import re
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_plugin_guide_lists_every_group_and_every_suite():
    text = (DOCS / "plugins.md").read_text()
    listed = set(re.findall(r"^\| `(tailrace\.\w+)` \|", text, re.MULTILINE))
    assert listed == {group for group in entry_points().groups if group.startswith("tailrace.")}
    for name in set(re.findall(r"`(tailrace\.[\w.]*testing[\w.]*)`", text)):
        module, _, function = name.rpartition(".")
        found = getattr(import_module(module), function, None) or import_module(name)
        assert found, name


def test_links_between_documents_lead_somewhere():
    root = DOCS.parent
    pages = [*DOCS.glob("*.md"), root / "README.md", *root.glob("packages/*/README.md"), *root.glob("apps/*/README.md")]
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []
