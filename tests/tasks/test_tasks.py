"""What every task promises."""

import pathlib
import pickle

import numpy as np
import pytest
import torch
from data_files import write_source
from fashion_files import write_fashion

from fl_epe.config import RunConfig
from fl_epe.models import bind_parameters
from fl_epe.tasks import Task, load_task
from fl_epe.tasks.by_name import BUILT_IN
from fl_epe.tasks.images import Digits


@pytest.fixture(params=sorted(BUILT_IN))
def task(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Task:
    """Every task, on data that the tests always have."""
    if request.param == "digits":
        return load_task("digits")
    if request.param == "fashion-mnist":
        write_fashion(tmp_path)
        return load_task("fashion-mnist", data_dir=str(tmp_path), num_clients=8)
    monkeypatch.setattr(
        "fl_epe.tasks.stored.SyntheticStackOverflow._max_held_out", 20
    )
    if request.param.startswith("synthetic-"):
        return load_task(request.param, num_clients=8, max_examples=20)
    monkeypatch.setenv("FL_EPE_CACHE", str(tmp_path / "cache"))
    source = write_source(request.param, tmp_path / "source")
    return load_task(request.param, data_dir=source, max_examples=12)


def test_a_task_travels_as_a_few_bytes_after_its_data_is_loaded(task: Task):
    task.client(0)
    packed = pickle.dumps(task)
    assert len(packed) < 500
    assert pickle.loads(packed) == task  # noqa: S301
    assert hash(pickle.loads(packed)) == hash(task)  # noqa: S301


@pytest.mark.slow
def test_clients_have_inputs_for_the_model_and_integer_targets(task: Task):
    model = task.model()
    bind_parameters(model, torch.from_numpy(task.initial(0)))
    for client_id in (0, task.num_clients - 1):
        data = task.client(client_id)
        assert data.inputs.dtype in (torch.float32, torch.int64)
        assert data.targets.dtype == torch.int64
        assert len(data) == len(data.inputs) > 0
        result = task.loss(model.eval()(data.inputs), data.targets)
        # What is predicted: a class for each example, or its words without the padding.
        words = (
            data.targets if data.targets.dim() > 1 else torch.ones(len(data))
        )
        assert result.examples == int((words != 0).sum())
        assert 0 <= result.correct <= result.examples
        assert result.loss.requires_grad


def test_chance_is_the_share_of_the_most_frequent_class_or_of_one_word(
    task: Task,
):
    targets = task.held_out().targets
    if targets.dim() > 1:
        assert task.chance_accuracy() == 1 / 10_004
    else:
        constant = targets.mode().values
        share = (targets == constant).double().mean().item()
        assert task.chance_accuracy() == pytest.approx(share)


@pytest.mark.parametrize("client_id", [-1, 10_000])
def test_a_client_that_does_not_exist_is_named(task: Task, client_id: int):
    with pytest.raises(ValueError, match=f"client_id={client_id} in"):
        task.client(client_id)


@pytest.mark.slow
def test_the_initial_model_is_a_function_of_its_seed(task: Task):
    first = task.initial(5)
    assert first.shape == (task.dim,)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, task.initial(5))
    assert np.mean(first == task.initial(6)) < 0.01


@pytest.mark.parametrize(
    "task",
    [name for name in sorted(BUILT_IN) if "stackoverflow" not in name],
    indirect=True,
)
def test_initial_weights_are_glorot_uniform_and_biases_zero(task: Task):
    model = task.model()
    bind_parameters(model, torch.from_numpy(task.initial(0)))
    for name, values in model.named_parameters():
        if "bias" in name:
            assert not values.any()
            continue
        fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(values)
        limit = np.sqrt(6 / (fan_in + fan_out))
        assert float(values.detach().abs().max()) <= limit
        # |U(−a, a)| has mean a/2 and standard deviation a/√12.
        standard_error = limit / np.sqrt(12 * values.numel())
        mean = float(values.detach().abs().mean())
        assert abs(mean - limit / 2) < 5 * standard_error


@pytest.mark.slow
def test_evaluation_repeats_to_the_bit_with_any_number_of_threads(task: Task):
    theta = task.initial(0)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(task.evaluate(theta))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert results[0] == results[1]
    assert set(results[0]) == {"loss", "accuracy"}
    # Nearly equal logits.
    classes = task.model().eval()(task.held_out().inputs[:1]).shape[-1]
    assert results[0]["loss"] == pytest.approx(np.log(classes), abs=0.5)
    assert 0 <= results[0]["accuracy"] <= 1


def test_defaults_are_settings_that_go_together(task: Task):
    config = RunConfig(clients=400_000, **task.defaults)
    assert config.noise_multiplier > 0


def test_evaluation_refuses_a_model_of_another_size(task: Task):
    with pytest.raises(ValueError, match=r"theta.shape=\(3,\)"):
        task.evaluate(np.zeros(3, np.float32))


# load_task


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"name='mnist' to be one of digits, .*fashion-mnist"
    ):
        load_task("mnist")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(
        ValueError,
        match=r"Unknown option clients=.* of task 'digits'.*num_clients, alpha",
    ):
        load_task("digits", clients=3)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        pytest.param(
            "num_clients",
            "60",
            "num_clients='60' of task 'digits': input should be a valid integer",
            id="num_clients=text",
        ),
        pytest.param(
            "num_clients", True, "num_clients=True", id="num_clients=True"
        ),
        pytest.param(
            "num_clients",
            0,
            "num_clients=0 to be an integer >= 1",
            id="num_clients=0",
        ),
        pytest.param(
            "alpha", 0.0, r"alpha=0.0 in \(0, inf\)", id="alpha=0.0-above-0"
        ),
        pytest.param("alpha", float("nan"), "alpha=nan in", id="alpha=nan"),
        pytest.param(
            "data_seed", -1, "data_seed=-1 >= 0", id="data_seed=-1-at-least-0"
        ),
    ],
)
def test_options_are_checked_before_any_data_is_read(
    option: str, value: object, message: str
):
    with pytest.raises(ValueError, match=message):
        load_task("digits", **{option: value})


def test_a_whole_number_is_a_fine_float():
    assert load_task("digits", alpha=1) == Digits(alpha=1.0)
