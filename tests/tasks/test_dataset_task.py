"""A task from a model and a data set."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from alone import Alone
from own_data import Noisy, Tied, TwoInputs, net, normalised, rows
from PIL import Image
from torch import nn

from fl_epe.tasks import from_datasets
from fl_epe.tasks.dataset_task import DatasetTask
from fl_epe.tasks.tensors import read_column
from fl_epe.training import LocalTraining

ROOT = Path(__file__).parents[2]


def _task(model: Any = net, dataset: Any = None, **more: Any) -> DatasetTask:
    arguments: dict[str, Any] = {
        "inputs": "x",
        "targets": "y",
        "partition": "by:user",
    }
    return from_datasets(
        model, rows() if dataset is None else dataset, **arguments | more
    )


def _learn(
    task: DatasetTask, steps: int = 3, rate: float = 0.3
) -> tuple[float, float]:
    """Held-out loss before and after a few clients' updates."""
    theta, trainer = task.initial(0), Alone(task)
    before = task.evaluate(theta)["loss"]
    for number in range(steps):
        for client in range(task.num_clients):
            local = LocalTraining(rate, 1, 4)
            update = trainer.train(
                theta, client, local, seed=0, round_number=number
            )
            theta = theta + update.values / 4
    return before, task.evaluate(theta)["loss"]


def _changed(column: str, values: list[Any]) -> datasets.Dataset:
    return rows().remove_columns(column).add_column(column, values)


# What is learned


def test_whole_numbers_are_classes():
    task = _task()
    assert task.metric == "accuracy"
    held = task.held_out()
    assert (held.inputs.dtype, held.targets.dtype) == (
        torch.float32,
        torch.int64,
    )
    before, after = _learn(task)
    assert after < 0.5 * before
    theta = task.initial(0)
    model = net()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), model.parameters())
    outputs = model(held.inputs)
    scores = task.evaluate(theta)
    assert scores["loss"] == pytest.approx(
        nn.functional.cross_entropy(outputs, held.targets).item(), rel=1e-5
    )
    assert scores["accuracy"] == int(
        (outputs.argmax(1) == held.targets).sum()
    ) / len(held)


def test_text_becomes_classes_in_the_order_of_the_alphabet():
    data = rows()
    task = _task(dataset=data, targets="word", held_out=0.5)
    words = np.concatenate([task.client(i).targets for i in range(10)])
    numbers = {"class a": 0, "class b": 1, "class c": 2}
    kept = [numbers[word] for word in task._datasets[0]["word"]]
    assert sorted(words) == sorted(kept)
    assert task.held_out().targets.tolist() == [
        numbers[w] for w in task._datasets[1]["word"]
    ]
    assert _learn(task)[1] < 1


def test_real_numbers_are_fitted_by_the_mean_square_and_have_no_metric():
    data = _changed("y", [sum(x) for x in rows()["x"]])
    task = _task(lambda: nn.Linear(4, 1), data)
    theta, held = task.initial(0), task.held_out()
    fitted = held.inputs @ torch.from_numpy(theta[:4]) + theta[4]
    assert task.evaluate(theta) == {
        "loss": pytest.approx(
            ((fitted - held.targets) ** 2).mean().item(), rel=1e-5
        )
    }
    assert task.metric == ""
    assert task.notes() == []
    assert task.chance_accuracy() is None
    assert task.chance_loss() == pytest.approx(
        held.targets.var(correction=0).item(), rel=1e-4
    )
    before, after = _learn(task, rate=0.02)
    assert after < before / 2


def _in_thousands(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.l1_loss(outputs[:, 0], targets / 1000 - 7)


def test_chance_is_the_best_constant_for_any_loss_of_real_numbers():
    targets = [1e5 + 3e4 * sum(x) for x in rows()["x"]]
    task = _task(
        lambda: nn.Linear(4, 1), _changed("y", targets), loss=_in_thousands
    )
    far = (
        task.held_out().targets - task.held_out().targets.median()
    ).abs().mean().item() / 1000
    assert task.chance_loss() == pytest.approx(far, rel=0.01)
    fails = _task(
        lambda: nn.Linear(4, 1), _changed("y", targets), loss=lambda *_: 1 / 0
    )
    assert fails.chance_loss() is None


def test_the_best_constant_for_classes_has_the_entropy_of_their_shares():
    task = _task()
    shares = np.bincount(task.held_out().targets) / len(task.held_out())
    assert task.chance_loss() == pytest.approx(
        -(shares * np.log(shares)).sum(), rel=1e-4
    )
    weights = torch.tensor([1.0, 5.0, 0.2])
    weighted = _task(loss=nn.CrossEntropyLoss(weight=weights))
    assert weighted.chance_loss() is not None
    words = {"x": [[1, 2]] * 20, "y": [[1, 2]] * 20, "user": [0, 1] * 10}
    assert (
        _task(
            lambda: nn.Embedding(4, 4), datasets.Dataset.from_dict(words)
        ).chance_loss()
        is None
    )


def test_a_class_that_nobody_held_out_has_costs_the_constant_nothing():
    data = rows()
    few = data.filter(lambda row: row["y"] < 2)
    task = _task(dataset=data, held_out=few)
    shares = np.bincount(few["y"]) / len(few)
    assert task.chance_loss() == pytest.approx(
        -(shares * np.log(shares)).sum(), rel=1e-4
    )


@pytest.mark.parametrize("outputs", [1, 2], ids=["one-output", "two-outputs"])
def test_two_classes_have_an_area_under_the_curve(outputs: int):
    data = _changed("y", [int(sum(x) > 4) for x in rows()["x"]])
    whole, held = data, data.select(range(20))
    loss = None
    if outputs == 1:
        whole, held = (
            part.cast_column("y", datasets.Value("float32"))
            for part in (whole, held)
        )

        def loss(found, targets):
            return nn.functional.binary_cross_entropy_with_logits(
                found[:, 0], targets
            )

    task = _task(lambda: nn.Linear(4, outputs), whole, held_out=held, loss=loss)
    theta, examples = task.initial(0), task.held_out()
    model = task.model()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), model.parameters())
    logits = model(examples.inputs).detach()
    margin = logits[:, -1] - (logits[:, 0] if outputs == 2 else 0)
    ones, zeros = margin[examples.targets == 1], margin[examples.targets == 0]
    wins = (ones[:, None] > zeros).float() + (
        ones[:, None] == zeros
    ).float() / 2
    assert task.evaluate(theta)["ROC AUC"] == pytest.approx(
        wins.mean().item(), rel=1e-6
    )
    assert "ROC AUC" not in task.evaluate(np.full_like(theta, np.nan))


def test_targets_of_minus_100_do_not_count():
    tokens = [[1, 2, 3], [2, 3, -100], [3, -100, -100], [1, 1, 1]] * 5
    data = datasets.Dataset.from_dict(
        {"x": [[1, 2, 3]] * 20, "y": tokens, "user": [0, 1] * 10}
    )
    task = _task(
        lambda: nn.Embedding(4, 4), data, held_out=data.select(range(4))
    )
    theta = task.initial(0)
    logits = torch.from_numpy(theta.reshape(4, 4))[[1, 2, 3]].expand(4, 3, 4)
    targets = torch.tensor(tokens[:4])
    scores = task.evaluate(theta)
    expected = nn.functional.cross_entropy(
        logits.reshape(-1, 4), targets.reshape(-1)
    )
    assert scores["loss"] == pytest.approx(expected.item(), rel=1e-5)
    right = (logits.argmax(-1) == targets).sum().item()
    assert scores["accuracy"] == pytest.approx(right / 9)
    assert task.notes() == []


def _mean_logit(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def test_a_loss_and_a_metric_of_ones_own_are_means_and_the_metric_has_its_name():
    task = _task(
        loss=nn.CrossEntropyLoss(label_smoothing=0.1), metric=_mean_logit
    )
    theta, held = task.initial(0), task.held_out()
    model = net()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), model.parameters())
    outputs = model(held.inputs)
    smooth = nn.functional.cross_entropy(
        outputs, held.targets, label_smoothing=0.1
    ).item()
    assert task.evaluate(theta) == {
        "loss": pytest.approx(smooth, rel=1e-5),
        "_mean_logit": pytest.approx(outputs.mean().item(), rel=1e-5),
    }
    assert task.chance_accuracy() is None


# What the model is called with


@pytest.mark.parametrize(
    "columns", [["first part", "x"], ("x", "user")], ids=["list", "tuple"]
)
def test_several_columns_are_features_of_one_tensor(columns: Any):
    task = _task(lambda: nn.Linear(5, 3), inputs=columns)
    row = task._datasets[1][0]
    flat = [value for name in columns for value in np.atleast_1d(row[name])]
    assert task.held_out().inputs[0].tolist() == pytest.approx(flat)
    assert task.notes() == []


def test_a_mapping_names_the_models_arguments():
    task = _task(TwoInputs, inputs={"left": "x", "right": "first part"})
    held = task.held_out()
    assert {name: tuple(part.shape) for name, part in held.inputs.items()} == {
        "left": (6, 4),
        "right": (6,),
    }
    before, after = _learn(task, rate=0.1)
    assert after < before


def test_images_are_channels_first_in_0_to_1():
    pixels = np.arange(20 * 5 * 4 * 3, dtype=np.uint8).reshape(20, 5, 4, 3)
    data = datasets.Dataset.from_dict(
        {"x": list(pixels), "y": [0, 1] * 10, "user": [0, 0, 1, 1] * 5},
        features=datasets.Features(
            {
                "x": datasets.Image(),
                "y": datasets.Value("int64"),
                "user": datasets.Value("int64"),
            }
        ),
    )
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(12, 2))
    task = _task(model, data, held_out=data.select([3, 4]))
    expected = pixels[[3, 4]].transpose(0, 3, 1, 2) / np.float32(255)
    np.testing.assert_array_equal(
        task.held_out().inputs.numpy(), expected.astype(np.float32)
    )
    assert task.notes() == []


@pytest.mark.parametrize(
    "kind", ["1", "L", "I;16"], ids=["bit", "byte", "word"]
)
def test_white_is_1_in_images_of_any_depth(kind: str):
    white = Image.fromarray(np.full((4, 4), 2**16 - 1, np.uint16))
    white = white if kind == "I;16" else Image.new(kind, (4, 4), "white")
    features = datasets.Features({"x": datasets.Image()})
    column = read_column(
        datasets.Dataset.from_dict({"x": [white]}, features), "x", "inputs"
    )
    assert (column.shape, column.unique().tolist()) == ((1, 1, 4, 4), [1.0])


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda out: {"logits": out}, id="mapping"),
        pytest.param(lambda out: (out, None), id="tuple"),
        pytest.param(lambda out: [out], id="list"),
    ],
)
def test_the_output_may_be_wrapped(wrap: Callable[[torch.Tensor], Any]):
    class Wrapped(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> Any:
            return wrap(super().forward(inputs))

    model = Wrapped(nn.Linear(4, 3))
    plain = _task(nn.Sequential(*model))
    assert _task(model).evaluate(plain.initial(0)) == plain.evaluate(
        plain.initial(0)
    )


def test_a_module_is_the_initial_model_and_is_not_changed():
    model = net()
    before = (
        nn.utils.parameters_to_vector(model.parameters())
        .detach()
        .numpy()
        .copy()
    )
    task = _task(model)
    np.testing.assert_array_equal(task.initial(0), before)
    np.testing.assert_array_equal(task.initial(1), before)
    _learn(task)
    after = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.testing.assert_array_equal(after, before)


def test_options_say_the_arguments_by_their_names():
    found = from_datasets(
        net,
        rows(),
        inputs=["x"],
        targets="y",
        partition="by:user",
        metric=_no_metric,
    ).options()
    assert found == {
        "model": "net",
        "dataset": "Dataset of 60 rows",
        "inputs": "['x']",
        "targets": "y",
        "partition": "by:user",
        "num_clients": None,
        "held_out": None,
        "loss": None,
        "metric": "_no_metric",
    }


@pytest.mark.parametrize(
    ("arguments", "unit"),
    [
        pytest.param({}, "user", id="column"),
        pytest.param(
            {"partition": "by:hospital_id"}, "hospital", id="column-of-ids"
        ),
        pytest.param({"partition": "by:id"}, "id", id="bare-id"),
        pytest.param(
            {"partition": "by:home town"}, "home town", id="two-words"
        ),
        pytest.param({"partition": "iid:5"}, "client", id="no-column"),
    ],
)
def test_a_client_is_called_what_the_data_call_it(arguments: Any, unit: str):
    assert _task(**arguments).unit == unit


# Held-out rows


def _splits(*names: str) -> datasets.DatasetDict:
    return datasets.DatasetDict(
        {name: rows(20 + i) for i, name in enumerate(names)}
    )


@pytest.mark.parametrize(
    ("data", "held_out", "sizes"),
    [
        pytest.param(rows(), None, (54, 6), id="a-tenth"),
        pytest.param(rows(), 0.25, (45, 15), id="a-share"),
        pytest.param(rows(), rows(7), (60, 7), id="a-data-set"),
        pytest.param(_splits("train", "test"), None, (20, 21), id="test"),
        pytest.param(
            _splits("train", "extra", "validation"),
            None,
            (20, 22),
            id="validation",
        ),
        pytest.param(
            _splits("train", "extra", "test"), "extra", (20, 21), id="a-split"
        ),
        pytest.param(
            _splits("train", "test"), 0.5, (10, 10), id="a-share-of-train"
        ),
        pytest.param(_splits("all"), None, (18, 2), id="a-single-split"),
    ],
)
def test_what_is_held_out(data: Any, held_out: Any, sizes: tuple[int, int]):
    task = _task(dataset=data, held_out=held_out)
    clients = sum(len(task.client(i)) for i in range(task.num_clients))
    assert (clients, len(task.held_out())) == sizes


def test_held_out_rows_belong_to_no_client():
    data = rows().add_column("number", list(map(float, range(60))))
    task = _task(dataset=data, inputs="number", held_out=0.25)
    parts = [task.client(i).inputs for i in range(10)] + [
        task.held_out().inputs
    ]
    assert sorted(torch.cat(parts).tolist()) == list(range(60))


# Where data may come from


def _write(kind: str, folder: Path) -> Any:
    data = rows().remove_columns(["x", "word"])
    if kind in ("function", "object"):
        return data if kind == "object" else lambda: data
    if kind == "saved":
        data.save_to_disk(str(folder / "saved"))
        return folder / "saved"
    if kind == "saved-splits":
        datasets.DatasetDict(train=data).save_to_disk(str(folder / "saved"))
        return str(folder / "saved")
    path = folder / ("data/train.csv" if kind == "folder" else f"data.{kind}")
    path.parent.mkdir(exist_ok=True)
    if kind == "parquet":
        data.to_parquet(path)
    elif kind == "jsonl":
        data.to_json(path)
    else:
        data.to_csv(path)
    return path.parent if kind == "folder" else path


KINDS = [
    "object", "function", "csv", "jsonl", "parquet", "saved", "saved-splits", "folder",
]  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # pandas' files
@pytest.mark.parametrize("kind", KINDS)
def test_data_may_come_from(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache")
    )
    monkeypatch.chdir(tmp_path)
    source = _write(kind, tmp_path)
    task = _task(lambda: nn.Linear(2, 3), source, inputs=["first part", "user"])
    plain = _task(lambda: nn.Linear(2, 3), inputs=["first part", "user"])
    for number in range(10):
        ours, theirs = task.client(number), plain.client(number)
        assert torch.equal(ours.targets, theirs.targets)
        torch.testing.assert_close(ours.inputs, theirs.inputs)
    assert json.dumps(task.options())


def test_data_that_are_not_kept_are_read_client_by_client(
    monkeypatch: pytest.MonkeyPatch,
):
    kept = _task()
    assert kept._all_clients is not None
    monkeypatch.setattr("fl_epe.tasks.dataset_task._MAX_IN_MEMORY", 100)
    read = _task()
    assert read._all_clients is None
    for number in range(10):
        assert torch.equal(
            read.client(number).inputs, kept.client(number).inputs
        )
        assert torch.equal(
            read.client(number).targets, kept.client(number).targets
        )


# Bad input


BAD_DATA = {
    "missing-input": (
        {"dataset": _changed("x", [[1.0, None, 2.0, 3.0]] + [[1.0] * 4] * 59)},
        r"inputs='x' to be finite: 1 of \d+ rows have a missing",
    ),
    "infinite": (
        {"dataset": _changed("x", [[float("inf")] * 4] * 60)},
        r"inputs='x' to be finite: \d+ of \d+ rows",
    ),
    "missing-target": (
        {"dataset": _changed("y", [None, 1, 2] * 20)},
        r"targets='y' to be finite: \d+ of \d+ rows have a missing",
    ),
    "missing-class": (
        {"dataset": _changed("word", [None, "a", "b"] * 20), "targets": "word"},
        r"targets='word' to have a label in every row: \d+ have none, such as row 1\.$",
    ),
    "ragged": (
        {"dataset": _changed("x", [[1.0] * (3 + i % 2) for i in range(60)])},
        r"inputs='x' to have rows of one shape, got \(3,\) and \(4,\): pad or cut",
    ),
    "text-input": (
        {"inputs": "word"},
        "inputs='word' to hold numbers, got text .Unable to parse string .class",
    ),
    "no-input": (
        {"inputs": ["x", "age"]},
        "inputs='age' to be a column of the data: x, y, user",
    ),
    "no-target": ({"targets": "Y"}, "targets='Y' to be a column of the data"),
    "held-column": (
        {"held_out": rows().remove_columns("x")},
        "inputs='x' to be a column of the data: y, user",
    ),
    "one-row": ({"dataset": rows(1)}, "at least 2 rows, got 1"),
    "empty-split": (
        {"dataset": datasets.DatasetDict(train=rows(), test=rows().select([]))},
        "Expected data with rows, got 60 and 0 held out",
    ),
    "no-split": (
        {"held_out": "test"},
        "held_out='test' to be one of the other splits: none",
    ),
    "other-split": (
        {"dataset": _splits("train", "test"), "held_out": "valid"},
        "held_out='valid' to be one of the other splits: test",
    ),
    "two-splits": (
        {"dataset": _splits("a", "b")},
        "Expected a split 'train' among a, b",
    ),
    "no-data": ({"dataset": dict}, "datasets.Dataset or DatasetDict, got dict"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_data_that_do_not_fit_are_refused(case: str):
    arguments, message = BAD_DATA[case]
    task = _task(**arguments)
    with pytest.raises(ValueError, match=message):
        task.client(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"held_out": 1.5}, "held_out=1.5 in", id="share"),
        pytest.param({"held_out": 0}, "held_out=0 in", id="no-share"),
        pytest.param(
            {"partition": "user"}, "partition='user' to be", id="partition"
        ),
        pytest.param(
            {"model": 3}, "model=3 to be a torch.nn.Module", id="model"
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_at_once(
    arguments: Any, message: str
):
    with pytest.raises(ValueError, match=message):
        _task(**arguments)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        pytest.param(
            "./no.csv", FileNotFoundError, "dataset='./no.csv'", id="csv"
        ),
        pytest.param(
            "no.parquet",
            FileNotFoundError,
            "dataset='no.parquet'",
            id="parquet",
        ),
        pytest.param(
            "pics", FileNotFoundError, "dataset='pics'", id="mistyped-folder"
        ),
        pytest.param(
            "notes.md",
            ValueError,
            "to end with one of .csv, .tsv, .jsonl",
            id="suffix",
        ),
        pytest.param(
            "someone/nothing", ConnectionError, "'someone/nothing'", id="hub"
        ),
    ],
)
def test_a_path_that_holds_no_data_is_named(
    name: str,
    kind: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: Any,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "notes.md").write_text("no data")
    with pytest.raises(kind, match=message):
        assert _task(dataset=name).num_clients


class _NoLogits(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> Any:
        return {"out": super().forward(inputs)}


def _no_metric(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    raise KeyError("boom")


def _class_7_in_row_30() -> datasets.Dataset:
    labels = list(rows()["y"])
    labels[30] = 7
    return _changed("y", labels)


BAD_MODELS = {
    "no-logits": (
        {"model": lambda: _NoLogits(4, 3)},
        "tensor, or something with logits, got dict",
    ),
    "float64": ({"model": lambda: net().double()}, "float64.*model.float()"),
    "shape": (
        {"model": lambda: nn.Linear(5, 3)},
        r"inputs: float32 \(2, 4\); targets: int64",
    ),
    "late-class": (
        {"dataset": _class_7_in_row_30()},
        "'y' to hold classes 0 … 2.*got 7",
    ),
    "negative": (
        {"dataset": _changed("y", [-1] * 60)},
        "Target -1 is out of bounds",
    ),
    "masked": (
        {"dataset": _changed("y", [-100] * 60)},
        "to have a value that is not -100",
    ),
    "no-class": (
        {"dataset": _changed("y", [0.5] * 60)},
        r"as many outputs as real targets, in the same order, got \(2, 3\) for \(2,\)",
    ),
    "vector-loss": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        r"the loss to be one number, the mean of the batch, got shape \(2,\)",
    ),
    "constant-loss": (
        {"loss": lambda *_: torch.tensor(1.0)},
        "the loss to depend on the param",
    ),
    "vector-metric": (
        {"metric": lambda outputs, targets: targets},
        "the metric to be one number, the mean of the batch",
    ),
    "bad-metric": (
        {"metric": _no_metric},
        "KeyError: 'boom' .test_dataset_task.py, line",
    ),
    "no-module": ({"model": dict}, "model to make a torch.nn.Module, got dict"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_cannot_be_trained_is_refused_before_training(case: str):
    arguments, message = BAD_MODELS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        _task(**arguments).notes()


def test_a_loss_that_is_not_finite_is_said():
    task = _task(loss=lambda outputs, targets: outputs.mean() * float("nan"))
    assert task.notes() == [
        "The loss of the initial model on two held-out examples is nan."
    ]


@pytest.mark.parametrize(
    ("model", "start"),
    [
        pytest.param(normalised, "BatchNorm: ", id="batch-norm"),
        pytest.param(Tied, "4 frozen parameters", id="frozen"),
        pytest.param(Noisy, "The model draws random numbers", id="draws"),
    ],
)
def test_what_is_left_alone_is_said(model: Any, start: str):
    (note,) = _task(model).notes()
    assert note.startswith(start)


def test_batch_norm_is_evaluated_with_averages_over_the_held_out_inputs():
    task = _task(
        normalised, rows(300), held_out=0.4
    )  # 120 rows: batches of 64 and 56
    theta, held = task.initial(3), task.held_out()
    model = normalised()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), model.parameters())
    first, norm, _, last = list[Any](model.children())
    with torch.no_grad():
        hidden = first(held.inputs)
        batches = hidden[:64], hidden[64:]
        mean = torch.stack([batch.mean(0) for batch in batches]).mean(0)
        variance = torch.stack([batch.var(0) for batch in batches]).mean(0)
        scaled = (hidden - mean) / (
            variance + norm.eps
        ).sqrt() * norm.weight + norm.bias
        expected = nn.functional.cross_entropy(
            last(scaled.relu()), held.targets
        )
    assert task.evaluate(theta)["loss"] == pytest.approx(
        expected.item(), rel=1e-5
    )
    assert task.evaluate(theta) == task.evaluate(theta)


_ELSEWHERE = """
import hashlib, json, sys
from own_data import net, rows
from fl_epe.tasks import from_datasets
task = from_datasets(net, rows(), inputs="x", targets="word", partition=sys.argv[1],
                     num_clients=int(sys.argv[2]) or None)
seen = hashlib.sha256(task.initial(1).tobytes())
for data in [*(task.client(i) for i in range(task.num_clients)), task.held_out()]:
    seen.update(data.inputs.numpy().tobytes() + data.targets.numpy().tobytes())
print(seen.hexdigest())
"""


@pytest.mark.weekly
def test_another_process_has_the_same_clients_held_out_rows_and_initial_model():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    answers = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": paths,
        }
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, "dirichlet:0.3", "5"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        answers.add(done.stdout)
    assert len(answers) == 1


def test_a_missing_value_of_any_row_is_refused_before_training():
    whole = rows()
    features = np.array(whole["x"])
    features[:, 0] = np.where(np.arange(60) % 20 == 7, np.nan, features[:, 0])
    bad = whole.remove_columns("x").add_column("x", features.tolist())
    held_out = whole.select(range(5))
    with pytest.raises(
        ValueError, match=r"inputs='x' to be finite: 3 of 60 rows"
    ):
        _task(dataset=bad, held_out=held_out).notes()


@pytest.mark.parametrize("nobody", ["", None], ids=["empty", "missing"])
def test_rows_of_nobody_are_refused(nobody: str | None):
    owners = [f"u{i % 10}" if i % 30 else nobody for i in range(60)]
    bad = rows().remove_columns("user").add_column("user", owners)
    with pytest.raises(ValueError, match="2 of 54 rows have no value"):
        assert _task(dataset=bad, partition="by:user", held_out=0.1).num_clients


def test_without_defaults_it_is_pickled_too():
    again = pickle.loads(pickle.dumps(_task(nn.Linear(2, 2))))  # noqa: S301
    assert again.defaults == {}
    assert again.options() == _task(nn.Linear(2, 2)).options()
