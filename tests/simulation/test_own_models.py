"""Models of one's own from the first round to the record, in process."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from own_data import SMALL, Noisy, net, normalised, rows
from torch import nn

from fl_epe import AuditRecord
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, RunStoppedError, StopRequest, simulate
from fl_epe.tasks import from_datasets
from fl_epe.tasks.dataset_task import DatasetTask


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def _sentences() -> datasets.Dataset:
    random = np.random.default_rng(0)
    words = random.integers(1, 20, (100, 6))
    return datasets.Dataset.from_dict(
        {
            "input_ids": words.tolist(),
            "attention_mask": np.ones_like(words).tolist(),
            "y": (words[:, 0] > 10).astype(int).tolist(),
            "user": [i % 10 for i in range(100)],
        }
    )


def _table(model: Callable[[], nn.Module]) -> DatasetTask:
    return from_datasets(
        model,
        rows(200),
        inputs="x",
        targets="y",
        partition="by:user",
        held_out=0.25,
    )


def _text() -> DatasetTask:
    return from_datasets(
        _bert,
        _sentences(),
        inputs={"input_ids": "input_ids", "attention_mask": "attention_mask"},
        targets="y",
        partition="by:user",
        held_out=0.25,
    )


TASKS: dict[str, Callable[[], DatasetTask]] = {
    "transformer": _text,
    "table": lambda: _table(net),
    "batch-norm": lambda: _table(normalised),
    "draws": lambda: _table(Noisy),
}


def _job(name: str, **more: Any) -> Job:
    settings = SMALL | {"clients": 10, "local_batch_size": 8} | more
    return Job(
        TASKS[name](), RunConfig(**settings), Seeds.derive(1), evaluate_every=1
    )


SLOW = pytest.param(
    "transformer", marks=pytest.mark.slow
)  # its package takes seconds to import


@pytest.mark.slow
@pytest.mark.parametrize("name", [SLOW, "table", "batch-norm"])
def test_a_model_of_ones_own_learns_and_leaves_a_record(
    name: str, tmp_path: Path
):
    job = _job(
        name, rounds=12, clients_per_round=10, noise_multiplier=0.0, local_epochs=2,
        local_learning_rate=0.3, server_learning_rate=1.0, num_canaries=2,
        canary_participations=1, clipping="fixed", clip_norm=3.0,
    )  # fmt: skip
    record = simulate(job, workers=2)
    assert record.provenance.faults == ()
    accuracy, loss = (
        record.metrics["eval_accuracy"],
        record.metrics["eval_loss"],
    )
    assert loss[-1] < loss[0]
    assert accuracy[-1] > max(0.7, accuracy[0])
    record.save(tmp_path / "record.npz")
    loaded = AuditRecord.load(tmp_path / "record.npz")
    assert loaded.dim == job.task.dim
    np.testing.assert_array_equal(loaded.metrics["eval_accuracy"], accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("name", [SLOW, "table", "batch-norm", "draws"])
def test_a_resumed_run_equals_one_that_never_stopped(name: str, tmp_path: Path):
    whole = simulate(_job(name), workers=1)
    stop, checkpoint = StopRequest(), tmp_path / "checkpoint.npz"
    with pytest.raises(RunStoppedError):
        simulate(
            _job(name),
            workers=1,
            checkpoint=checkpoint,
            stop=stop,
            on_round=lambda done: stop.ask() if done.round == 1 else None,
        )
    resumed = simulate(_job(name), workers=1, checkpoint=checkpoint)
    for field in dataclasses.fields(whole):
        ours, theirs = getattr(whole, field.name), getattr(resumed, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
    assert whole.metrics.keys() == resumed.metrics.keys()
    np.testing.assert_array_equal(
        whole.metrics["eval_loss"], resumed.metrics["eval_loss"]
    )
