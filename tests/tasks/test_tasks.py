import gzip
import pathlib
import pickle
import struct

import numpy as np
import pytest
import torch
from data_files import write_source

from fl_epe.config import RunConfig
from fl_epe.models import Cnn, SeededDropout
from fl_epe.seeding import generator
from fl_epe.tasks import Task, bind_parameters, load_task, task_names
from fl_epe.tasks.digits import Digits
from fl_epe.tasks.fashion_mnist import FashionMnist, read_idx
from fl_epe.tasks.partition import dirichlet_partition, stratified_split

CNN_PARAMETERS = 1_206_590


def _idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def _write_fashion(folder: pathlib.Path, train: int = 200, test: int = 30) -> None:
    """Four small files, the training ones packed and the test ones not."""
    random = np.random.default_rng(0)
    for prefix, count, suffix in (("train", train, ".gz"), ("t10k", test, "")):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            values = random.integers(0, 256 if kind.startswith("images") else 10, shape)
            raw = gzip.compress(_idx(values), mtime=0) if suffix else _idx(values)
            (folder / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(raw)


@pytest.fixture(params=task_names())
def task(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Task:
    """Every task, on data that the tests always have."""
    if request.param == "digits":
        return load_task("digits")
    if request.param == "fashion-mnist":
        _write_fashion(tmp_path)
        return load_task("fashion-mnist", data_dir=str(tmp_path), num_clients=8)
    for module in ("stackoverflow", "shakespeare"):
        monkeypatch.setattr(f"fl_epe.tasks.{module}._HELD_OUT", 20)
    if request.param.endswith("-twin"):
        return load_task(request.param, num_clients=8, max_examples=20)
    monkeypatch.setenv("FL_EPE_CACHE", str(tmp_path / "cache"))
    source = write_source(request.param, tmp_path / "source")
    return load_task(request.param, data_dir=source, max_examples=12)


# The contract that every task keeps.


def test_a_task_travels_as_a_few_bytes_after_its_data_is_loaded(task: Task):
    task.client(0)
    packed = pickle.dumps(task)
    assert len(packed) < 500
    assert pickle.loads(packed) == task  # noqa: S301
    assert hash(pickle.loads(packed)) == hash(task)  # noqa: S301


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
        words = data.targets if data.targets.dim() > 1 else torch.ones(len(data))
        assert result.examples == int((words != 0).sum())
        assert 0 <= result.correct <= result.examples
        assert result.loss.requires_grad


@pytest.mark.parametrize("client_id", [-1, 10_000])
def test_a_client_that_does_not_exist_is_named(task: Task, client_id: int):
    with pytest.raises(ValueError, match=f"client_id={client_id} <"):
        task.client(client_id)


def test_the_initial_model_is_a_function_of_its_seed(task: Task):
    first = task.initial(5)
    assert first.shape == (task.dim,)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, task.initial(5))
    assert np.mean(first == task.initial(6)) < 0.01


@pytest.mark.parametrize(
    "task", [name for name in task_names() if "stackoverflow" not in name], indirect=True
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
    with pytest.raises(ValueError, match=r"name='mnist' to be one of digits, .*fashion-mnist"):
        load_task("mnist")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"option='clients' of task 'digits'.*num_clients, alpha"):
        load_task("digits", clients=3)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        pytest.param(
            "num_clients",
            "60",
            "num_clients='60' of task 'digits' to be int",
            id="num_clients=text",
        ),
        pytest.param("num_clients", True, "num_clients=True", id="num_clients=True"),
        pytest.param("num_clients", 0, "num_clients=0 >= 1", id="num_clients=0-at-least-1"),
        pytest.param("alpha", 0.0, "alpha=0.0 > 0", id="alpha=0.0-above-0"),
        pytest.param("alpha", float("nan"), "alpha=nan > 0", id="alpha=nan"),
        pytest.param("data_seed", -1, "data_seed=-1 >= 0", id="data_seed=-1-at-least-0"),
    ],
)
def test_options_are_checked_before_any_data_is_read(option: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        load_task("digits", **{option: value})


def test_a_whole_number_is_a_fine_float():
    assert load_task("digits", alpha=1) == Digits(alpha=1.0)


# Digits


def test_digits_clients_share_four_fifths_of_the_images_and_each_has_some():
    task = Digits()
    sizes = [len(task.client(i)) for i in range(task.num_clients)]
    assert sum(sizes) + len(task.held_out()) == 1797
    assert len(task.held_out()) == pytest.approx(1797 / 5, abs=10)
    assert min(sizes) >= 4
    assert max(sizes) >= 3 * min(sizes)


def test_digits_pixels_are_between_zero_and_one():
    data = Digits().client(3)
    assert data.inputs.shape[1:] == (1, 28, 28)
    assert data.inputs.min() == 0
    assert 0.8 < data.inputs.max() <= 1


def test_no_held_out_digit_is_with_a_client():
    task = Digits()
    clients = [task.client(i) for i in range(task.num_clients)]
    seen = {image.numpy().tobytes() for data in clients for image in data.inputs}
    assert len(seen) > 1400  # nearly no two images are equal
    assert not any(image.numpy().tobytes() in seen for image in task.held_out().inputs)


def test_another_data_seed_is_another_split_of_the_same_digits():
    one, other = Digits(data_seed=0), Digits(data_seed=1)
    np.testing.assert_array_equal(one.client(0).targets, Digits(data_seed=0).client(0).targets)
    assert not torch.equal(one.held_out().targets, other.held_out().targets)
    assert len(one.held_out()) == len(other.held_out())


def test_more_clients_than_the_digits_allow_says_how_many():
    with pytest.raises(ValueError, match="num_clients=400 <= 359"):
        Digits(num_clients=400).client(0)


# Fashion-MNIST


def test_fashion_mnist_reads_packed_and_plain_files(tmp_path: pathlib.Path):
    _write_fashion(tmp_path)
    task = FashionMnist(data_dir=str(tmp_path), num_clients=8)
    clients = [task.client(i) for i in range(8)]
    assert sum(map(len, clients)) == 200
    assert min(map(len, clients)) >= 16
    assert len(task.held_out()) == 30
    raw = (tmp_path / "t10k-images-idx3-ubyte").read_bytes()[16:]
    pixels = np.frombuffer(raw, np.uint8).reshape(30, 1, 28, 28)
    np.testing.assert_allclose(task.held_out().inputs, pixels / 255, atol=1e-7)


def test_a_missing_file_says_where_to_get_it(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError) as caught:
        FashionMnist(data_dir=str(tmp_path)).client(0)
    message = str(caught.value)
    for part in ("dataset-fashion-mnist", "t10k-labels-idx1-ubyte", "--data-dir", str(tmp_path)):
        assert part in message


def test_a_relative_data_dir_means_the_folder_where_the_task_was_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert FashionMnist(data_dir="data").data_dir == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        pytest.param(
            "train-images-idx3-ubyte.gz",
            _idx(np.zeros((200, 28, 27))),
            "== \\(n, 28, 28\\)",
            id="images",
        ),
        pytest.param(
            "train-labels-idx1-ubyte.gz",
            _idx(np.zeros(199)),
            "labels.shape=\\(199,\\)",
            id="too-few-labels",
        ),
        pytest.param(
            "t10k-labels-idx1-ubyte", _idx(np.full(30, 10)), "< 10, found 10", id="label-too-large"
        ),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: pathlib.Path, name: str, raw: bytes, message: str
):
    _write_fashion(tmp_path)
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        FashionMnist(data_dir=str(tmp_path), num_clients=8).client(0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
def test_idx_arrays_come_back(tmp_path: pathlib.Path, pack, shape: tuple[int, ...]):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a").write_bytes(pack(_idx(array)))
    np.testing.assert_array_equal(read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0", id="no-header"),
        pytest.param(b"PNG!" + bytes(40), id="another-format"),
        pytest.param(b"\0\0\x0d\x01" + bytes(40), id="float32"),  # float32, not bytes
        pytest.param(
            b"\0\0\x08\x03\0\0\0\x02", id="axes-cut-off"
        ),  # the lengths of the axes are cut off
        pytest.param(_idx(np.zeros((2, 3)))[:-1], id="byte-missing"),
        pytest.param(_idx(np.zeros((2, 3))) + b"x", id="byte-too-many"),
        pytest.param(gzip.compress(_idx(np.zeros((2, 3))), mtime=0)[:-9], id="gzip-cut-off"),
        pytest.param(b"\x1f\x8b garbage", id="gzip-broken"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path: pathlib.Path, raw: bytes):
    path = tmp_path / "broken-idx"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="broken-idx"):
        read_idx(path)


# The splits


@pytest.mark.parametrize(("clients", "minimum"), [(1, 1), (7, 5), (50, 10)])
def test_every_example_goes_to_one_client(clients: int, minimum: int):
    labels = generator(1).integers(0, 10, 500)
    parts = dirichlet_partition(labels, clients, alpha=0.5, minimum=minimum, random=generator(2))
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(500))
    assert min(map(len, parts)) >= minimum


def _mean_share_of_the_commonest_label(alpha: float) -> float:
    labels = np.arange(4000) % 10
    parts = dirichlet_partition(labels, 40, alpha=alpha, minimum=20, random=generator(3))
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


def test_small_alpha_gives_each_client_few_labels():
    shares = [_mean_share_of_the_commonest_label(alpha) for alpha in (0.1, 0.5, 100.0)]
    assert shares[0] > 0.6 > shares[1] > 0.3 > shares[2] > 0.1


def test_a_stratified_split_takes_the_share_of_every_label():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    training, held_out = stratified_split(labels, 0.2, generator(0))
    assert np.bincount(labels[held_out]).tolist() == [20, 10, 2]
    np.testing.assert_array_equal(np.sort(np.r_[training, held_out]), np.arange(160))


# The model


def test_the_cnn_has_the_papers_number_of_parameters():
    sizes = {name: values.numel() for name, values in Cnn().named_parameters()}
    assert sum(sizes.values()) == CNN_PARAMETERS
    assert sizes["conv1.weight"] + sizes["conv1.bias"] == 320
    assert sizes["conv2.weight"] + sizes["conv2.bias"] == 18_496
    assert sizes["dense1.weight"] + sizes["dense1.bias"] == 1_179_776
    assert sizes["dense2.weight"] + sizes["dense2.bias"] == 7_998


def test_making_a_model_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    Cnn()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = SeededDropout(0.25).train()
    layer.random = generator(0)
    outputs = layer(torch.ones(100, 1000))
    assert outputs.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    # 10⁵ Bernoulli draws: the standard error of the share is √(¼·¾/10⁵) < 0.0014.
    assert float((outputs == 0).float().mean()) == pytest.approx(0.25, abs=5 * 0.0014)


def test_dropout_does_nothing_in_evaluation():
    inputs = torch.rand(3, 4)
    assert SeededDropout(0.5).eval()(inputs) is inputs


def test_dropout_needs_a_generator_in_training():
    with pytest.raises(RuntimeError, match=r"SeededDropout.random"):
        SeededDropout(0.5).train()(torch.ones(2))


@pytest.mark.parametrize("rate", [-0.25, 1.0, 0.3, float("nan")])
def test_dropout_rates_that_cannot_be_met_exactly_are_refused(rate: float):
    with pytest.raises(ValueError, match=f"rate={rate}"):
        SeededDropout(rate)


def test_parameters_are_views_on_the_flat_vector():
    model = torch.nn.Linear(2, 3)
    flat = torch.arange(9.0)
    bind_parameters(model, flat)
    flat += 1
    assert model.weight.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert model.bias.tolist() == [7, 8, 9]


def test_a_flat_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"flat.shape=\(8,\) == \(9,\)"):
        bind_parameters(torch.nn.Linear(2, 3), torch.zeros(8))
