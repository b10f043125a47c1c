"""A ranker on disk: the same afterwards, and one line for whatever happened to it."""

import contextlib
import json
from pathlib import Path

import pytest

from tailrace.ranker import DamagedRankerError, LengthRanker, RankerOptionError, UnknownMethodError
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.saved import SavedRanker, read_ranker, write_ranker
from tailrace.ranker.testing import made_examples

PROMPTS = [example.prompt for example in made_examples(10, seed=8)]


@pytest.fixture
def saved(tmp_path):
    ranker = LengthRanker.train(made_examples(40), Lexical(trees=15, depth=3), seed=2, budget_s=77)
    ranker.update(made_examples(10, seed=4))
    ranker.save(tmp_path / "ranker")
    return tmp_path / "ranker", ranker


def test_it_is_the_same_afterwards(saved, tmp_path):
    directory, ranker = saved
    loaded = LengthRanker.load(directory)
    assert (loaded.method, loaded.version) == ("lexical", 1)
    assert loaded.predict(PROMPTS) == ranker.predict(PROMPTS)
    more = made_examples(20, seed=9)
    assert loaded.update(more) == ranker.update(more), "it also goes on as before"
    assert loaded.predict(PROMPTS) == ranker.predict(PROMPTS)
    loaded.save(directory)
    assert LengthRanker.load(directory).version == 2


@pytest.mark.parametrize("room", range(5))
def test_a_disk_that_is_full_leaves_the_ranker_that_was_there(saved, monkeypatch, room):
    directory, ranker = saved
    before = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    ranker.update(made_examples(20, seed=9))
    written = []
    write = Path.write_bytes

    def full(self, content):
        if len(written) == room:
            write(self, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        written.append(write(self, content))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left") if room < len(before) else contextlib.nullcontext():
            ranker.save(directory)
    after = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert (after == before) == (room < len(before))
    assert LengthRanker.load(directory).version == (1 if room < len(before) else 2)


def test_nothing_is_pickled(saved):
    files = [path.name for path in saved[0].rglob("*") if path.is_file()]
    assert sorted(files) == ["examples.json", "quantiles.json", "ranker.json", "trees.safetensors"]


@pytest.mark.parametrize(
    "name", ["ranker.json", "examples.json", "predictor/trees.safetensors", "predictor/quantiles.json"]
)
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "one bit"])
@pytest.mark.cases(6)
def test_damage_is_one_line_that_names_the_file(saved, name, how):
    directory, _ = saved
    file = directory / name
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes({"empty": b"", "cut": content[:-7], "one bit": bytes(flipped)}[how])
    with pytest.raises(DamagedRankerError) as caught:
        LengthRanker.load(directory)
    said = str(caught.value)
    assert name in said
    assert str(directory) in said
    assert "\n" not in said


@pytest.mark.parametrize("note", [b"[]", b"null", b'{"format": 1}', b"\xff\xfe", b"{"])
def test_a_note_that_is_none(saved, note):
    (saved[0] / "ranker.json").write_bytes(note)
    with pytest.raises(DamagedRankerError, match=r"ranker\.json: found no"):
        LengthRanker.load(saved[0])


def test_no_directory(tmp_path):
    with pytest.raises(DamagedRankerError, match=r"found no ranker\.json .*expected what LengthRanker\.save wrote"):
        LengthRanker.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"name": "gone"}, UnknownMethodError, "found the method 'gone'"),
        ({"options": {"branches": 3}}, DamagedRankerError, "options that 'lexical' does not take"),
        ({"options": {"trees": -1}}, DamagedRankerError, "found trees = -1"),
        ({"files": {"quantiles.json": b"{}"}}, DamagedRankerError, r"found no trees\.safetensors"),
    ],
)
def test_a_ranker_of_another_installation(saved, change, error, said):
    directory, _ = saved
    read = read_ranker(directory)
    fields = {name: getattr(read, name) for name in SavedRanker.__slots__}
    write_ranker(directory, SavedRanker(**(fields | change)))
    with pytest.raises(error, match=said):
        LengthRanker.load(directory)


def test_trees_that_do_not_fit_together(saved):
    from safetensors.numpy import load, save

    directory, _ = saved
    read = read_ranker(directory)
    for name, change in (("feature", lambda a: a + 1000), ("value", lambda a: a[:, :-2]), ("start", lambda a: a[:0])):
        arrays = load(read.files["trees.safetensors"])
        arrays[name] = change(arrays[name]).copy()
        files = {**read.files, "trees.safetensors": save(arrays)}
        write_ranker(directory, SavedRanker(read.name, read.options, read.state, read.memory, files))
        with pytest.raises(DamagedRankerError, match=r"found (no )?trees"):
            LengthRanker.load(directory)


def test_a_method_that_nobody_could_load_is_not_saved(tmp_path):
    class Own(Lexical):
        pass

    ranker = LengthRanker.train(made_examples(20), Own(trees=3))
    assert ranker.method == ""
    with pytest.raises(
        RankerOptionError, match="found a method of type Own, expected one that an entry point registers"
    ):
        ranker.save(tmp_path)


def test_a_predictor_may_not_write_elsewhere(tmp_path):
    for name in ("../outside.json", "run.pkl"):
        with pytest.raises(RankerOptionError, match="expected a name ending"):
            write_ranker(tmp_path, SavedRanker("lexical", {}, {}, [], {name: b""}))


def test_the_note_says_what_it_is(saved):
    note = json.loads((saved[0] / "ranker.json").read_text())
    assert note["method"] == "lexical"
    assert note["options"]["trees"] == 15
    assert (note["state"]["seed"], note["state"]["budget_s"], note["state"]["version"]) == (2, 77, 1)
