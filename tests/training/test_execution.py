"""Where training computes, and how."""

from typing import Any

import pytest
import torch

from fl_epe.training import Execution

CPU = Execution(device="cpu")


NAMES = (
    "FL_EPE_DEVICE",
    "FL_EPE_CHUNK",
    "FL_EPE_PRECISION",
    "FL_EPE_DETERMINISTIC",
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_the_environment_decides_where_and_how(monkeypatch: pytest.MonkeyPatch):
    assert Execution.from_environment() == Execution()
    for name, value in zip(NAMES, ("cpu", "8", "bf16", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert Execution.from_environment() == Execution("cpu", 8, "bf16", False)


@pytest.mark.parametrize(
    "bad", ["CHUNK=x", "CHUNK=0", "PRECISION=int8", "DEVICE=abacus"]
)
def test_a_wrong_variable_is_refused(bad: str, monkeypatch: pytest.MonkeyPatch):
    name, value = bad.split("=")
    monkeypatch.setenv(f"FL_EPE_{name}", value)
    with pytest.raises(ValueError, match=f"{value!r}|chunk=0"):
        Execution.from_environment()


def test_a_wrong_flag_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FL_EPE_DETERMINISTIC", "yes")
    with pytest.raises(ValueError, match="FL_EPE_DETERMINISTIC='yes'"):
        Execution.from_environment()


def test_a_cpu_trains_small_models_at_once_and_large_ones_apart():
    assert CPU.clients_at_once(26_122) == 24
    assert CPU.clients_at_once(600_000) == 1
    assert CPU.clients_at_once(1_000, has_convolutions=True) == 1
    assert (
        Execution("cpu", chunk=6).clients_at_once(10**7, has_convolutions=True)
        == 6
    )


def test_a_gpu_trains_as_many_at_once_as_its_memory_should_hold():
    dims = (10**6, 10**7, 10**8, 2 * 10**9)
    assert [Execution("cuda").clients_at_once(dim, True) for dim in dims] == [
        128,
        107,
        10,
        1,
    ]


def _state() -> tuple[object, ...]:
    backends: Any = torch.backends
    return (
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    )


@pytest.fixture
def torch_as_it_was():
    before: Any = _state()
    backends: Any = torch.backends
    yield
    backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision = (
        before[:2]
    )
    backends.cudnn.rnn.fp32_precision, backends.cudnn.benchmark = before[1:3]
    torch.use_deterministic_algorithms(before[3])


@pytest.mark.usefixtures("torch_as_it_was")
def test_every_training_sets_what_torch_keeps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    Execution("cuda", precision="tf32").apply()
    assert _state() == ("tf32", "tf32", False, True)
    Execution("cuda", deterministic=False).apply()
    assert _state() == ("ieee", "ieee", False, False)
    matmul = torch.backends.cuda.matmul
    assert isinstance(
        matmul.allow_tf32, bool
    )  # torch's older name can be read as well
