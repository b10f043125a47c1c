"""What `tools/release` makes of a small workspace: two packages, of which one needs the other."""

import shutil
import subprocess
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LEAF, USER = "packages/leaf", "packages/user"
REPOSITORY = "https://example.com/tailrace"


@pytest.fixture
def release(tmp_path, monkeypatch):
    loader = SourceFileLoader("release", str(ROOT / "tools/release"))
    module = module_from_spec(spec_from_loader("release", loader))
    monkeypatch.setitem(__import__("sys").modules, "release", module)
    loader.exec_module(module)
    workspace(tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def workspace(root):
    (root / "pyproject.toml").write_text(
        f"""[project]
name = "workspace"
version = "0"
requires-python = ">=3.11"
[tool.uv]
package = false
[tool.uv.workspace]
members = ["packages/*"]
[tool.tailrace.release]
authors = ["Somebody"]
classifiers = ["Typing :: Typed"]
repository = "{REPOSITORY}"
"""
    )
    shutil.copy(ROOT / "LICENSE", root)
    for name, needs in (("leaf", "[]"), ("user", '["tailrace-leaf"]')):
        module = root / f"packages/{name}/src/tailrace/{name}"
        module.mkdir(parents=True)
        (module / "__init__.py").write_text('"""A package."""\n\n__version__ = "0.1.0"\n')
        (module / "py.typed").write_text("")
        folder = root / "packages" / name
        (folder / "README.md").write_text(
            "# A package\n\n[a page](../../docs/page.md#part), [here](#a-package), [out](https://example.com)\n"
        )
        (folder / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n* Something.\n")
        (folder / "pyproject.toml").write_text(
            f"""[project]
name = "tailrace-{name}"
version = "0.1.0"
description = "A package"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
dependencies = {needs}

[project.optional-dependencies]
some = []
more = ["tailrace-{name}[some]"]

[build-system]
requires = ["uv_build>=0.9,<0.14"]
build-backend = "uv_build"

[tool.uv.build-backend]
module-name = "tailrace.{name}"

[tool.uv.sources]
tailrace-leaf = {{ workspace = true }}
"""
        )
    git(root, "init", "-q", "-b", "main")
    commit(root)


def git(root, *arguments):
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    return subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def commit(root):
    (root / ".gitignore").write_text("dist/\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "A state")
    for key, value in (("user.name", "Somebody"), ("user.email", "somebody@example.com")):
        git(root, "config", key, value)


def built(release, out):
    members = release.packages()
    release.build(members, out, REPOSITORY)
    return members


def test_from_a_bump_to_tags(release, tmp_path, capsys):
    assert release.main(["--dry-run"]) == 0
    assert release.main([]) == 1
    assert "tailrace-leaf: found entries under Unreleased" in capsys.readouterr().err

    assert release.main(["--bump", "0.2.0"]) == 0
    assert release.main([]) == 1
    assert "not committed" in capsys.readouterr().err
    commit(tmp_path)
    assert release.main([]) == 0
    assert set(git(tmp_path, "tag").split()) == {"tailrace-leaf-v0.2.0", "tailrace-user-v0.2.0"}
    assert len(list((tmp_path / "dist").glob("*-0.2.0-*.whl"))) == len(list((tmp_path / "dist").glob("*.tar.gz"))) == 2

    # A change without a version, and a sibling that leaves the range of what was released.
    changed = tmp_path / LEAF / "src/tailrace/leaf/__init__.py"
    changed.write_text(changed.read_text() + "ANSWER = 42\n")
    commit(tmp_path)
    assert release.main([]) == 1
    assert "tailrace-leaf changed since tailrace-leaf-v0.2.0" in capsys.readouterr().err
    changelog = tmp_path / LEAF / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", "## Unreleased\n\n* More.\n"))
    assert release.main(["--bump", "0.3.0", "tailrace-leaf"]) == 0
    commit(tmp_path)
    assert release.main([]) == 1
    assert "tailrace-user-v0.2.0 does not take tailrace-leaf 0.3.0: release it, too" in capsys.readouterr().err


def test_no_release_without_an_address_and_no_bump_of_what_did_not_change(release, tmp_path, capsys):
    settings = tmp_path / "pyproject.toml"
    settings.write_text(settings.read_text().replace(f'repository = "{REPOSITORY}"\n', ""))
    commit(tmp_path)
    assert release.main([]) == 1
    assert "found no repository in [tool.tailrace.release]" in capsys.readouterr().err
    (tmp_path / USER / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.1.0\n\nFirst.\n")
    assert release.main(["--bump", "0.2.0"]) == 1
    assert "tailrace-user 0.1.0: expected entries under Unreleased" in capsys.readouterr().err
    assert '"0.1.0"' in (tmp_path / LEAF / "pyproject.toml").read_text()


def test_a_wheel_says_what_its_package_and_the_workspace_say(release, tmp_path):
    out = tmp_path / "out"
    members = built(release, out)
    about = release.metadata(release.wheel_of(out, members[1]))
    assert about.get_all("Requires-Dist") == [
        "tailrace-leaf>=0.1.0,<0.2",
        "tailrace-user[some]>=0.1.0,<0.2 ; extra == 'more'",
    ]
    assert (
        f"[a page]({REPOSITORY}/blob/tailrace-user-v0.1.0/docs/page.md#part), [here](#a-package)" in about.get_payload()
    )
    assert f"Changelog, {REPOSITORY}/blob/tailrace-user-v0.1.0/packages/user/CHANGELOG.md" in about.get_all(
        "Project-URL"
    )
    assert release.check(members, out, final=False) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("METADATA", "License-File: LICENSE\n", "", "License-File"),
        ("METADATA", "Author: Somebody\n", "", "Author"),
        ("METADATA", "Classifier: Typing :: Typed\n", "", "Classifier"),
        ("METADATA", "Project-URL: Repository", "Project-URL: Home", "addresses"),
        ("METADATA", f"({REPOSITORY}/blob/tailrace-user-v0.1.0/", "(", "the link docs/page.md#part"),
        ("METADATA", ">=0.1.0,<0.2", ">=0.1.0", "expected tailrace-leaf>=0.1.0,<0.2"),
        ("METADATA", "Version: 0.1.0", "Version: 0.1.1", "Version"),
        ("METADATA", "Summary: A package\n", "", "Summary"),
        ("user/__init__.py", '"0.1.0"', '"0.0.1"', "__version__ 0.0.1"),
        ("user/py.typed", None, None, "py.typed"),
        ("user/py.typed", None, "tailrace/__init__.py", "the file tailrace/__init__.py outside"),
    ],
)
def test_what_a_wheel_lacks_is_named(release, tmp_path, name, old, new, fault):
    out = tmp_path / "out"
    members = built(release, out)
    wheel = release.wheel_of(out, members[1])
    with zipfile.ZipFile(wheel) as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    [place] = [one for one in content if one.endswith(name)]
    if old is None:
        content[new or "gone/"] = content.pop(place)
    else:
        assert old.encode() in content[place]
        content[place] = content[place].replace(old.encode(), new.encode())
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, data in content.items():
            archive.writestr(one, data)
    common = {"authors": ["Somebody"], "classifiers": ["Typing :: Typed"]}
    known = {member.name: member for member in members}
    faults = list(release.faults_of_wheel(wheel, members[1], known, common))
    assert any(fault in one for one in faults), faults


@pytest.mark.parametrize(
    ("required", "faults"),
    [
        ("tailrace-leaf>=0.1.0,<0.2", []),
        ("tailrace-leaf", ["takes tailrace-leaf 0.0.9", "takes tailrace-leaf 0.2.0"]),
        ("tailrace-leaf>=0.1.0", ["takes tailrace-leaf 0.2.0"]),
        ("tailrace-leaf==0.1.0", ["refuses tailrace-leaf 0.1.1"]),
    ],
)
def test_ranges_are_tried_with_an_older_and_newer_siblings(release, tmp_path, required, faults):
    out = tmp_path / "out"
    members = built(release, out)
    wheel = release.wheel_of(out, members[1])
    with zipfile.ZipFile(wheel) as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, data in content.items():
            archive.writestr(one, data.replace(b"tailrace-leaf>=0.1.0,<0.2", required.encode()))
    found = release.faults_between_siblings({member: release.wheel_of(out, member) for member in members})
    assert len(found) == len(faults), found
    assert all(fault in one for fault, one in zip(faults, found, strict=True)), found


def test_which_versions_are_tried(release):
    assert release.others(Version("0.3.1")) == {
        Version("0.3.0"): False,
        Version("0.3.2"): True,
        Version("0.4.0"): False,
    }


@pytest.mark.parametrize(
    ("text", "final", "faults"),
    [
        ("## Unreleased\n\n* New.\n", False, 0),
        ("## Unreleased\n\n* New.\n", True, 2),
        ("## Unreleased\n\n## 0.1.0 (2026-11-26)\n\n* New.\n", True, 0),
        ("## Unreleased\n\n## 0.1.0\n\n## 0.0.9\n\n* Old.\n", False, 1),
        ("## 0.1.00\n\n* Old.\n", True, 1),
    ],
)
def test_a_changelog_says_what_is_new(release, text, final, faults):
    member = release.packages()[0]
    assert len(list(release.faults_of_changelog(text, member, final=final))) == faults


def test_a_name_that_no_package_has_is_told_and_nothing_is_written(release, tmp_path, capsys):
    before = git(tmp_path, "status", "--porcelain")
    assert release.main(["--bump", "0.2.0", "tailrace-leav"]) == 1
    assert "found the package 'tailrace-leav', expected one of" in capsys.readouterr().err
    assert release.main(["--dry-run", "tailrace-leaf"]) == 1
    assert "expected no name without --bump" in capsys.readouterr().err
    assert git(tmp_path, "status", "--porcelain") == before
