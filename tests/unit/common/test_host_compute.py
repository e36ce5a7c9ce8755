"""Which type a machine computes fast, and on which device."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.common.config import ModelConfig
from computerrl.common.errors import ConfigError
from computerrl.common.host import choose_device, fast_dtype, has_visible_gpu

SLOW = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse avx2 fma\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (SLOW, "float32"),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "bfloat16"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "float32"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
        ("Features\t: fp asimd\n", "float32"),
    ],
)
def test_processor_says_by_its_flags(tmp_path: Path, lines: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(lines)
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == expected


def test_gpu_counts_where_it_may_be_opened_and_is_used(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(SLOW)
    (tmp_path / "nvidia0").mkdir()  # Cannot be opened for writing, like one that belongs to another job.
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "float32"
    (tmp_path / "nvidia1").touch()
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "bfloat16"
    assert fast_dtype("cpu", cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "float32"


def test_configuration_takes_it_unless_told_otherwise() -> None:
    assert ModelConfig().dtype == fast_dtype()
    assert ModelConfig(dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("wanted", "built_for", "has_cuda", "has_gpu", "expected"),
    [
        ("cpu", "13.0", True, True, "cpu"),
        ("cpu", None, False, True, "cpu"),
        ("auto", None, False, False, "cpu"),
        ("auto", "13.0", False, False, "cpu"),
        ("auto", "13.0", True, True, "cuda"),
        ("auto", None, False, True, "make setup DEVICE=cuda"),
        ("cuda", "13.0", True, True, "cuda"),
        ("cuda", None, False, True, "make setup DEVICE=cuda"),
        ("cuda", None, False, False, "torch sees no GPU"),
        ("cuda", "13.0", False, True, "torch sees no GPU"),
    ],
)
def test_choose_device_cpu_build_beside_a_gpu_is_refused_unless_cpu_is_asked_for(
    wanted: str, built_for: str | None, has_cuda: bool, has_gpu: bool, expected: str
) -> None:
    if expected in ("cpu", "cuda"):
        assert choose_device(wanted, built_for=built_for, has_cuda=has_cuda, has_gpu=has_gpu) == expected
    else:
        with pytest.raises(ConfigError, match=expected):
            choose_device(wanted, built_for=built_for, has_cuda=has_cuda, has_gpu=has_gpu)


@pytest.mark.parametrize(("variable", "expected"), [(None, True), ("0", True), ("", False), ("-1", False)])
def test_has_visible_gpu_follows_the_variable(monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: bool) -> None:
    monkeypatch.setattr("computerrl.common.host.may_use_gpu", lambda: True)
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert has_visible_gpu() is expected
