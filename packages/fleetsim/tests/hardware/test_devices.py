"""The table of devices against the figures of the papers, and device files."""

import json
import pickle
import re
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.errors import HardwareFileError, UnknownNameError
from tailrace.fleetsim.hardware import Device, FittedDecode, device, devices, load_device


def test_all_devices_of_the_brief_are_there():
    assert tuple(devices()) == ("H800", "H20", "H100", "H200", "A100")
    assert all(device(name).name == name and device(name).parallel_sizes == (1, 2, 4, 8) for name in devices())


@pytest.mark.parametrize(
    ("name", "teraflops", "memory_gb", "hbm_tb", "nvlink_gb"),
    [("H20", 148, 96, 4.0, 900), ("H800", 989.5, 80, 3.35, 400)],
)
def test_streamrl_table_1(name, teraflops, memory_gb, hbm_tb, nvlink_gb):
    found = device(name)
    assert found.peak_flops == teraflops * 1e12
    assert found.memory_bytes == memory_gb * 1e9
    assert found.hbm_bandwidth == hbm_tb * 1e12
    assert found.nvlink_bandwidth == nvlink_gb * 1e9


def test_staleflow_s_knee_on_h20():
    # StaleFlow, Appendix B.1: compute-bound from 37 trajectories; 148 TFLOPS over 4 TB/s.
    assert device("H20").ridge_batch == 37


def test_no_price_is_invented():
    assert [name for name in devices() if device(name).price_per_hour is not None] == []


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
    for name in devices():
        found = device(name)
        for size in found.parallel_sizes:
            assert found.weight_bandwidth[size] < found.hbm_bandwidth
            assert found.gemm_flops[size] < found.peak_flops
        assert found.kv_bandwidth < found.hbm_bandwidth
        assert found.prefill_flops < found.peak_flops
        assert found.allreduce_bandwidth <= found.nvlink_bandwidth / 2


def test_an_unknown_devices_close_ones_and_all():
    with pytest.raises(UnknownNameError) as error:
        device("h-800")
    assert str(error.value).startswith("found the unknown device 'h-800', did you mean 'H800'")
    assert "H800, H20, H100, H200, A100" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UnknownNameError, match="'Cray-1', Expected one of H800"):
        device("Cray-1")


def test_a_device_is_pickled_for_other_processes():
    assert pickle.loads(pickle.dumps(device("H20"))) == device("H20")


def test_every_device_is_as_it_would_be_in_a_file_of_its_own(tmp_path):
    for name in devices():
        assert edited(tmp_path, name, name=repr(name)) == device(name)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            dict,
            model=st.sampled_from(["a", "b"]),
            tensor_parallel=st.integers(1, 8),
            **{k: st.floats(0, 1) for k in ("k1", "k2", "k3", "k4")},
            kv_capacity_tokens=st.integers(1, 10**9),
        ),
        max_size=3,
    )
)
def test_measured_decoding_is_read(tmp_path_factory, fits):
    told = ", ".join(
        "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in fit.items()) + "}" for fit in fits
    )
    found = edited(tmp_path_factory.mktemp("device"), fitted=f"[{told}]")
    assert found.fitted == tuple(FittedDecode(**fit) for fit in fits)


def edited(tmp_path, of="H800", **changes) -> Device:
    """A file with a device of the table, changed."""
    text = resources.files("tailrace.fleetsim.hardware").joinpath("devices.toml").read_text()
    section = re.search(rf"^\[{of}\][^\n]*\n(.*?)(?=^\[|\Z)", text, re.DOTALL | re.MULTILINE)[1]
    lines = dict(line.split(" = ", 1) for line in section.splitlines() if " = " in line and not line.startswith("#"))
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
    assert edited(tmp_path).name == "mine"


def test_sizes_are_those_that_every_constant_is_known_for(tmp_path):
    assert edited(tmp_path, weight_bandwidth="{ 1 = 1e12, 4 = 1e12 }").parallel_sizes == (1, 4)
    assert edited(tmp_path, allreduce_latency_s="{ 2 = 1e-5 }").parallel_sizes == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu_s": None}, "found no option 'cpu_s', expected one"),
        ({"kv_bandwith": "1.0"}, "unknown option 'kv_bandwith', expected one of .*did you mean 'kv_bandwidth'"),
        ({"kv_bandwidth": "-1.0"}, "option 'kv_bandwidth': found -1.0, expected: greater than 0"),
        ({"kv_bandwidth": "nan"}, "option 'kv_bandwidth': found nan"),
        ({"kv_bandwidth": "inf"}, "option 'kv_bandwidth': found inf"),
        ({"kv_bandwidth": "true"}, "option 'kv_bandwidth': found True"),
        ({"memory_share": "1.2"}, "option 'memory_share': found 1.2, expected: less than or equal to 1"),
        ({"gpus_per_node": "8.0"}, "option 'gpus_per_node': found 8.0, expected: a valid integer"),
        ({"gpus_per_node": "0"}, "option 'gpus_per_node': found 0, expected: greater than or equal to 1"),
        ({"gemm_flops": "{ one = 1e14 }"}, "option 'gemm_flops.one.*found 'one', expected: a valid integer"),
        ({"gemm_flops": "{ 2 = 'fast' }"}, "option 'gemm_flops.2': found 'fast', expected: a valid number"),
        (
            {"gemm_flops": "{ 2 = 1e14 }", "weight_bandwidth": "{ 4 = 1e12 }"},
            r"gemm_flops for .* \[2\].*\[4\].* all three have",
        ),
        ({"roofline_exponent": "0.5"}, "found 0.5, expected: greater than or equal to 1"),
        ({"name": "3"}, "option 'name': found 3, expected: a valid string"),
        ({"fitted": "3"}, "option 'fitted': found 3, expected: a valid"),
        ({"fitted": "[{ model = 'a' }]"}, r"found no option 'fitted.0.tensor_parallel'"),
        ({"memory_bytes": "= 3"}, "not TOML"),
    ],
)
def test_a_bad_file_has_a_clear_line_for_each_fault(tmp_path, changes, message):
    with pytest.raises(HardwareFileError, match=message) as error:
        edited(tmp_path, **changes)
    for line in str(error.value).split("\n"):
        assert "mine.toml: " in line
        assert "found" in line or "not TOML" in line or "all three have" in line


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(HardwareFileError, match=r"found no readable device file .*nowhere\.toml: No such file"):
        load_device(tmp_path / "nowhere.toml")
