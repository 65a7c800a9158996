"""The tasks on converted data: what they take of it, and what they say without it."""

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from data_files import handwriting, write_source

from fl_epe import data
from fl_epe.config import RunConfig
from fl_epe.data.examples import BOS
from fl_epe.tasks import load_task

KINDS = ["emnist", "stackoverflow"]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setenv("FL_EPE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_and_what_it_was_converted_to_are_the_same_task(
    tmp_path: pathlib.Path, kind: str
):
    source = write_source(kind, tmp_path / "source")
    store = data.convert(kind, source, tmp_path / "store")
    tasks = [
        load_task(kind, data_dir=place)
        for place in (source, str(tmp_path / "store"))
    ]
    assert tasks[0].num_clients == tasks[1].num_clients == len(store)
    for client in range(len(store)):
        one, other = (task.client(client) for task in tasks)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
    assert len(tasks[0].held_out()) == len(tasks[1].held_out()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_so_many_examples_of_a_client_are_taken_at_random(
    tmp_path: pathlib.Path, kind: str
):
    source = write_source(kind, tmp_path / "source")
    everything = load_task(kind, data_dir=source, max_examples=0).client(0)
    few = load_task(kind, data_dir=source, max_examples=6)
    assert len(few.client(0)) == 6
    assert torch.equal(few.client(0).inputs, everything.inputs[:6])
    other = load_task(kind, data_dir=source, max_examples=6, data_seed=1)
    assert not torch.equal(few.client(0).inputs, other.client(0).inputs)


def test_pictures_reach_the_model_as_ink_on_paper(tmp_path: pathlib.Path):
    task = load_task(
        "emnist", data_dir=write_source("emnist", tmp_path / "source")
    )
    found = {
        (image.numpy().tobytes(), int(label))
        for client in range(task.num_clients)
        for image, label in zip(
            *vars(task.client(client)).values(), strict=True
        )
    }
    ink, labels = handwriting(100)
    values = ink.astype(np.float32) / np.float32(255)
    expected = zip(values, labels.tolist(), strict=True)
    assert found == {(image.tobytes(), label) for image, label in expected}


def test_words_reach_the_model_before_those_that_follow(tmp_path: pathlib.Path):
    source = write_source("stackoverflow", tmp_path / "source")
    found = load_task("stackoverflow", data_dir=source).client(0)
    assert found.inputs.shape == found.targets.shape == (18, 20)
    assert (found.inputs[:, 0] == BOS).all()
    assert torch.equal(found.inputs[:, 1:], found.targets[:, :-1])


def test_stackoverflow_without_data_says_where_to_get_it():
    task = load_task("stackoverflow")
    with pytest.raises(FileNotFoundError) as caught:
        task.client(0)
    for part in (
        "stackoverflow.sqlite.lzma",
        "fl-epe data convert",
        "synthetic-stackoverflow",
    ):
        assert part in str(caught.value)


def _data_dir(kind: str, **options: str) -> str:
    task: Any = load_task(kind, **options)
    return str(task.data_dir)


def test_a_path_is_kept_from_where_the_task_was_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for kind in KINDS:
        assert _data_dir(kind, data_dir="data") == str(tmp_path / "data")
    assert _data_dir("emnist") == "flwrlabs/femnist"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["max_examples", "data_seed"])
def test_options_are_checked(kind: str, option: str):
    with pytest.raises(ValueError, match=f"{option}=-1 >= 0"):
        load_task(kind, **{option: -1})


@pytest.mark.parametrize(
    ("name", "clients", "participations"),
    [("synthetic-emnist", 3383, 15), ("synthetic-stackoverflow", 342_477, 1)],
)
def test_defaults_are_the_papers_runs(
    name: str, clients: int, participations: int
):
    config = RunConfig(clients=clients, **load_task(name).defaults)
    schedule = config.client_schedule()
    assert schedule.most_participations() == participations
    assert schedule.participations() == pytest.approx(participations, rel=0.006)
    assert (
        0
        < config.canaries_per_round
        <= 0.1 * (config.cohort_size + config.canaries_per_round)
    )
