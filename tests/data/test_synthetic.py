"""Synthetic data sets: drawn from a seed, of the real sizes, lazily, and learnable."""

import math
import pickle
import string

import numpy as np
import pytest
import torch
from alone import Alone
from torch.nn import functional

from fl_epe.data.examples import (
    BOS,
    CHARACTERS,
    EOS,
    OOV,
    PAD,
    VOCABULARY,
    words_and_next,
)
from fl_epe.data.synthetic_images import WRITERS, distances
from fl_epe.data.synthetic_images import examples as drawings
from fl_epe.data.synthetic_images import held_out as held_out_drawings
from fl_epe.data.synthetic_text import USERS
from fl_epe.data.synthetic_text import examples as sentences
from fl_epe.data.synthetic_text import held_out as held_out_sentences
from fl_epe.tasks import load_task
from fl_epe.training import LocalTraining

# Text


def test_a_user_has_the_same_sentences_whenever_asked():
    first = sentences(3, 5)
    np.testing.assert_array_equal(first, sentences(3, 5))
    np.testing.assert_array_equal(
        held_out_sentences(3, 20), held_out_sentences(3, 20)
    )
    for other in (sentences(3, 6), sentences(4, 5)):
        assert not np.array_equal(first[:90], other[:90])


def test_sentences_have_the_form_of_real_ones():
    found = np.concatenate([sentences(0, user, 100) for user in range(50)])
    assert found.shape == (5000, 21)
    assert found.dtype == np.uint16
    assert (found[:, 0] == BOS).all()
    body = found[:, 1:]
    lengths = (body != PAD).sum(1)
    for row, length in zip(body, lengths, strict=True):
        assert not row[length:].any()
        assert (row[length - 1] == EOS) or length == 20
        assert not np.isin(row[: length - 1], [PAD, BOS, EOS]).any()
    assert 10 < lengths.mean() < 16
    assert 0.1 < np.mean(body[:, -1] != PAD) < 0.3
    assert 0.01 < np.mean(body[body != PAD] == OOV) < 0.06


def test_words_have_zipf_frequencies():
    found = np.concatenate([sentences(0, user, 100) for user in range(300)])[
        :, 1:
    ]
    counts = np.sort(
        np.bincount(found[(found > 0) & (found < OOV)], minlength=OOV)
    )[::-1]
    ranks = np.array([1, 10, 100, 1000])
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    assert -1.3 < slope < -0.7
    assert (counts > 0).sum() > 8000


def test_sizes_of_users_are_like_the_real_ones():
    sizes = np.array([len(sentences(0, user)) for user in range(400)])
    assert sizes.min() >= 100
    # Real: 135,818,730 sentences of 342,477 users. The law's standard deviation is about 750.
    assert sizes.mean() == pytest.approx(
        135_818_730 / USERS, abs=5 * 750 / math.sqrt(400)
    )
    assert sizes.max() > 2000
    assert len(sentences(0, 1, 25)) == 25


def test_a_users_posts_are_more_alike_than_those_of_two_users():
    def rare_words(found: np.ndarray) -> np.ndarray:
        rare = found[(found > 100) & (found < OOV)]
        counts = np.sqrt(np.bincount(rare, minlength=OOV))
        return counts / np.linalg.norm(counts)

    users = [sentences(0, user + 100_000)[:100] for user in range(40)]
    first = np.stack([rare_words(found[:50]) for found in users])
    second = np.stack([rare_words(found[50:]) for found in users])
    alike = first @ second.T
    own = np.diag(alike)
    others = (alike.sum(1) - own) / (len(users) - 1)
    assert np.mean(own) > 1.3 * np.mean(others)
    assert np.mean(own > others) > 0.8


@pytest.mark.slow
def test_next_words_can_be_learned():
    """Counting pairs predicts held-out words better than counting words, by a nat and more."""
    inputs, targets = words_and_next(
        np.concatenate([sentences(0, u, 200) for u in range(300)])
    )
    held_in, held_out = words_and_next(held_out_sentences(0, 1000))
    single = np.bincount(targets.ravel(), minlength=VOCABULARY) + 0.1
    single = single / single.sum()
    pairs: dict[tuple[int, int], int] = {}
    for pair in zip(
        inputs.ravel().tolist(), targets.ravel().tolist(), strict=True
    ):
        pairs[pair] = pairs.get(pair, 0) + 1
    totals = np.bincount(inputs.ravel(), minlength=VOCABULARY)
    mask = held_out != PAD
    losses = [
        -np.log((pairs.get((a, b), 0) + 5 * single[b]) / (totals[a] + 5))
        for a, b in zip(
            held_in[mask].tolist(), held_out[mask].tolist(), strict=True
        )
    ]
    frequencies = -np.log(single[held_out[mask]]).mean()
    assert frequencies < math.log(VOCABULARY) - 2
    assert np.mean(losses) < frequencies - 1


@pytest.mark.slow
def test_training_on_sentences_lowers_the_loss_by_two_nats():
    """Of the least model that can learn next words: plain steps on a product of two embeddings."""
    random = torch.Generator().manual_seed(0)
    first, last = (
        0.1 * torch.randn(VOCABULARY, 8, generator=random) for _ in range(2)
    )
    parameters = [
        p.requires_grad_() for p in (first, last, torch.zeros(VOCABULARY))
    ]
    losses = []
    for user in range(24):
        inputs, targets = map(
            torch.from_numpy, words_and_next(sentences(0, user, 8))
        )
        logits = functional.embedding(inputs, first) @ last.T + parameters[2]
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PAD
        )
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-10)
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCABULARY), abs=0.2)
    assert np.mean(losses[-5:]) < losses[0] - 2


# Images


def test_every_character_has_strokes_of_its_own():
    assert (
        string.digits + string.ascii_uppercase + string.ascii_lowercase
        == CHARACTERS
    )
    glyphs = distances()
    assert glyphs.shape == (62, 121, 121)
    assert glyphs.min(axis=(1, 2)).max() < 1
    ink = (glyphs < 1.2).reshape(62, -1).astype(float)
    overlap = ink @ ink.T / ink.sum(1)
    assert np.median(overlap - np.eye(62)) < 0.5
    assert not np.array_equal(glyphs[0], glyphs[24])  # 0 and O


def test_a_writer_has_the_same_drawings_whenever_asked():
    for one, other in zip(drawings(3, 5), drawings(3, 5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(drawings(3, 5, 20)[0], drawings(3, 6, 20)[0])
    assert not np.array_equal(drawings(3, 5, 20)[0], drawings(4, 5, 20)[0])


def test_drawings_are_ink_on_paper():
    images, labels = drawings(0, 1)
    assert images.shape == (len(labels), 1, 28, 28)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert images.min() == 0
    assert images.max() == 1
    border = np.ones((28, 28), bool)
    border[1:-1, 1:-1] = False
    assert images[:, 0, border].mean() < 0.05
    assert 0.03 < images.mean() < 0.35


def test_half_of_the_characters_are_digits_and_all_occur():
    labels = np.concatenate([drawings(0, writer)[1] for writer in range(40)])
    # About 9,600 draws: the standard error of the share is 0.005.
    assert np.mean(labels < 10) == pytest.approx(0.5, abs=0.025)
    assert len(np.unique(labels)) == 62


@pytest.mark.slow
def test_sizes_of_writers_are_like_the_real_ones():
    sizes = np.array([len(drawings(0, writer)[1]) for writer in range(200)])
    # Real: 814,255 characters of, says the paper, 3,383 writers.
    assert sizes.mean() == pytest.approx(
        814_255 / WRITERS, abs=5 * 89 / math.sqrt(200)
    )
    assert sizes.min() >= 20
    assert sizes.max() <= 461
    assert len(drawings(0, 1, 25)[1]) == 25


def test_writers_differ_more_than_their_own_characters():
    """In the width of their pens."""
    means = [
        drawings(0, writer, 60)[0].mean(axis=(1, 2, 3)) for writer in range(20)
    ]
    within = np.mean([values.var() for values in means]) / 60
    assert np.var([values.mean() for values in means]) > 5 * within


@pytest.mark.slow
def test_training_on_drawings_lowers_the_loss_by_a_nat():
    task = load_task("synthetic-emnist", max_examples=64)
    trainer = Alone(task)
    theta = task.initial(0)
    losses = []
    for client in range(14):
        local = LocalTraining(learning_rate=0.08)
        update = trainer.train(
            theta, client, local, seed=0, round_number=client
        )
        theta = theta + update.values
        losses.append(update.loss_sum / update.examples)
    assert losses[0] == pytest.approx(math.log(62), abs=0.4)
    assert np.mean(losses[-3:]) < math.log(62) - 1


# As tasks


@pytest.mark.parametrize(
    ("name", "clients", "held_out"),
    [
        ("synthetic-stackoverflow", USERS, 1000),
        ("synthetic-emnist", WRITERS, 2000),
    ],
)
def test_synthetic_tasks_have_as_many_clients_and_keep_none(
    name: str, clients: int, held_out: int
):
    task = load_task(name)
    assert task.num_clients == clients
    assert len(task.client(clients - 1)) > 0
    assert len(pickle.dumps(task)) < 200
    assert len(task.held_out()) == held_out
    few = load_task(name, num_clients=3, max_examples=7)
    assert [len(few.client(client)) for client in range(3)] == [7, 7, 7]
    assert torch.equal(
        few.client(2).targets, load_task(name, max_examples=7).client(2).targets
    )


@pytest.mark.parametrize(
    "name", ["synthetic-stackoverflow", "synthetic-emnist"]
)
@pytest.mark.parametrize("option", ["num_clients", "max_examples", "data_seed"])
def test_options_of_synthetic_tasks_are_checked(name: str, option: str):
    with pytest.raises(ValueError, match=f"{option}=-1 .*>="):
        load_task(name, **{option: -1})


def test_held_out_sentences_and_drawings_are_nobodys():
    seen = {
        row.tobytes() for user in range(200) for row in sentences(0, user, 50)
    }
    long = [
        row for row in held_out_sentences(0, 200) if np.count_nonzero(row) > 8
    ]
    assert np.mean([row.tobytes() in seen for row in long]) < 0.02
    images, labels = held_out_drawings(0, 25)
    assert images.shape == (25, 1, 28, 28)
    assert labels.shape == (25,)


@pytest.mark.parametrize(
    "name", ["synthetic-emnist", "synthetic-stackoverflow"]
)
def test_sizes_are_known_without_the_examples(name):
    for most in (0, 5):
        task = load_task(name, num_clients=20, max_examples=most)
        clients = np.arange(20)
        sizes = [len(task.client(client)) for client in range(20)]
        assert task.sizes(clients).tolist() == sizes
