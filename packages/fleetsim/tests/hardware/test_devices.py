"""The table of devices against the figures of the papers, and device files."""

import dataclasses
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.errors import HardwareFileError, UnknownNameError
from tailrace.fleetsim.hardware import Device, FittedDecode, device, device_names, device_toml, load_device


def test_all_devices_of_the_brief_are_there():
    assert device_names() == ("H800", "H20", "H100", "H200", "A100")
    assert all(device(name).name == name and device(name).parallel_sizes == (1, 2, 4, 8) for name in device_names())


@pytest.mark.parametrize(
    ("name", "teraflops", "memory_gb", "hbm_tb", "nvlink_gb", "cost"),
    [("H20", 148, 96, 4.0, 900, 1.0), ("H800", 989.5, 80, 3.35, 400, 2.85)],
)
def test_streamrl_table_1(name, teraflops, memory_gb, hbm_tb, nvlink_gb, cost):
    found = device(name)
    assert found.peak_flops == teraflops * 1e12
    assert found.memory_bytes == memory_gb * 1e9
    assert found.hbm_bandwidth == hbm_tb * 1e12
    assert found.nvlink_bandwidth == nvlink_gb * 1e9
    assert found.price_per_hour == cost


def test_staleflow_s_knee_on_h20():
    # StaleFlow, Appendix B.1: compute-bound from 37 trajectories; 148 TFLOPS over 4 TB/s.
    assert device("H20").ridge_batch == 37


def test_no_price_is_invented():
    assert [name for name in device_names() if device(name).price_per_hour is not None] == ["H800", "H20"]


@pytest.mark.parametrize("name", ["H100", "H200", "A100"])
def test_derived_devices_keep_the_ratios_that_the_table_claims(name):
    base, found = device("H800"), device(name)
    arithmetic = found.peak_flops / base.peak_flops
    memory = found.hbm_bandwidth / base.hbm_bandwidth
    for size in base.parallel_sizes:
        assert found.gemm_flops[size] / base.gemm_flops[size] == pytest.approx(arithmetic, rel=5e-3)
        assert found.weight_bandwidth[size] / base.weight_bandwidth[size] == pytest.approx(memory, rel=5e-3)
        assert found.roofline_exponent[size] == base.roofline_exponent[size]
    assert found.kv_bandwidth / base.kv_bandwidth == pytest.approx(memory, rel=6e-3)
    assert found.prefill_flops / base.prefill_flops == pytest.approx(arithmetic, rel=5e-3)
    # NVLink: 361 GB/s of bus bandwidth were measured at 900 GB/s.
    assert found.allreduce_bandwidth / 361e9 == pytest.approx(found.nvlink_bandwidth / 900e9, rel=5e-3)


def test_no_device_claims_more_than_its_data_sheet():
    for name in device_names():
        found = device(name)
        for size in found.parallel_sizes:
            assert found.weight_bandwidth[size] < found.hbm_bandwidth
            assert found.gemm_flops[size] < found.peak_flops
        assert found.kv_bandwidth < found.hbm_bandwidth
        assert found.prefill_flops < found.peak_flops
        assert found.allreduce_bandwidth <= found.nvlink_bandwidth / 2


def test_an_unknown_device_names_close_ones_and_all():
    with pytest.raises(UnknownNameError) as error:
        device("h-800")
    assert str(error.value).startswith("found the unknown device 'h-800', did you mean 'H800'")
    assert "H800, H20, H100, H200, A100" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UnknownNameError, match="'Cray-1', Expected one of H800"):
        device("Cray-1")


def test_a_device_is_pickled_for_other_processes():
    assert pickle.loads(pickle.dumps(device("H20"))) == device("H20")


def test_every_device_survives_a_file(tmp_path):
    for name in device_names():
        path = tmp_path / f"{name}.toml"
        path.write_text(device_toml(device(name)))
        assert load_device(path) == device(name)


positive = st.floats(1e-9, 1e18)
by_size = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), positive, min_size=1).map(lambda one: one | {1: 1.0})
fits = st.builds(
    FittedDecode,
    model=st.text(),
    tensor_parallel=st.integers(1, 8),
    k1=positive,
    k2=positive,
    k3=positive,
    k4=positive,
    kv_capacity_tokens=st.integers(1, 10**9),
)


@settings(max_examples=60, deadline=None)
@given(
    st.text(min_size=1),
    st.one_of(st.none(), positive),
    by_size,
    by_size,
    st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.floats(1, math.inf), min_size=1).map(lambda one: one | {1: 1.0}),
    st.lists(fits, max_size=3).map(tuple),
)
def test_any_device_survives_a_file(tmp_path_factory, name, price, flops, bandwidth, exponents, fitted):
    made = dataclasses.replace(
        device("H800"),
        name=name,
        price_per_hour=price,
        gemm_flops=flops,
        weight_bandwidth=bandwidth,
        roofline_exponent=exponents,
        fitted=fitted,
    )
    path = tmp_path_factory.mktemp("device") / "one.toml"
    path.write_text(device_toml(made), encoding="utf-8")
    assert load_device(path) == made


def edited(tmp_path, **changes) -> Device:
    lines = dict(line.split(" = ", 1) for line in device_toml(device("H800")).splitlines() if line)
    for key, value in changes.items():
        if value is None:
            del lines[key]
        else:
            lines[key] = value
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()))
    return load_device(path)


def test_a_number_in_place_of_a_table_holds_for_all_sizes(tmp_path):
    assert edited(tmp_path, gemm_flops="5e14").gemm_flops == {1: 5e14, 2: 5e14, 4: 5e14, 8: 5e14}


def test_a_nameless_file_names_the_device(tmp_path):
    assert edited(tmp_path, name=None).name == "mine"


def test_sizes_are_those_that_every_constant_is_known_for(tmp_path):
    assert edited(tmp_path, weight_bandwidth="{ 1 = 1e12, 4 = 1e12 }").parallel_sizes == (1, 4)
    assert edited(tmp_path, allreduce_latency_s="{ 2 = 1e-5 }").parallel_sizes == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu_s": None}, "found no key 'cpu_s'"),
        ({"kv_bandwith": "1.0"}, "unknown key 'kv_bandwith', did you mean 'kv_bandwidth'"),
        ({"kv_bandwidth": "-1.0"}, "key 'kv_bandwidth': found -1.0, expected a number over 0"),
        ({"kv_bandwidth": "nan"}, "key 'kv_bandwidth': found nan"),
        ({"kv_bandwidth": "inf"}, "key 'kv_bandwidth': found inf"),
        ({"kv_bandwidth": "true"}, "key 'kv_bandwidth': found True"),
        ({"memory_share": "1.2"}, "key 'memory_share': found 1.2, expected a number over 0 and at most 1"),
        ({"gpus_per_node": "8.0"}, "key 'gpus_per_node': found 8.0, expected a whole number of at least 1"),
        ({"gpus_per_node": "0"}, "key 'gpus_per_node': found 0, expected a whole number of at least 1"),
        ({"gemm_flops": "{ one = 1e14 }"}, "key 'gemm_flops': found the entry 'one', expected a tensor parallelism"),
        ({"gemm_flops": "{ 2 = 'fast' }"}, "key 'gemm_flops.2': found 'fast', expected a number over 0"),
        (
            {"gemm_flops": "{ 2 = 1e14 }", "weight_bandwidth": "{ 4 = 1e12 }"},
            r"gemm_flops for .* \[2\].*\[4\].* all have",
        ),
        ({"roofline_exponent": "0.5"}, "found 0.5, expected a number of at least 1"),
        ({"name": "3"}, "key 'name': found 3, expected a name"),
        ({"fitted": "3"}, "key 'fitted': found 3, expected tables"),
        ({"fitted": "[{ model = 'a' }]"}, r"\[\[fitted\]\]: found no key 'tensor_parallel'"),
        ({"memory_bytes": "= 3"}, "not TOML"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, changes, message):
    with pytest.raises(HardwareFileError, match=message) as error:
        edited(tmp_path, **changes)
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(HardwareFileError, match=r"found no readable device file .*nowhere\.toml: No such file"):
        load_device(tmp_path / "nowhere.toml")
