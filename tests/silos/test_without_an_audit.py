"""Silos that have no audit, and what they say when the last model comes."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fl_epe.dp_sgd import PlainDPSGD
from fl_epe.silos import audit_records, final_answer


def small_silo():
    """Batches of 15 of 60 records."""
    return PlainDPSGD(
        np.zeros(2000), learning_rate=0.1, noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=15, seed=0,
    )  # fmt: skip


def test_a_small_silo_says_so_at_the_end_and_not_how_many_records_it_has(
    tmp_path,
):
    for _ in range(2):
        with audit_records(
            tmp_path, small_silo(), delta=1e-5, sample_rate=0.25, silo="north"
        ):
            pass
    found = final_answer(tmp_path, [np.zeros(2000)])
    assert (found.silo, found.canaries) == ("north", 0)
    assert all("too few" in line.reason for line in found.lines)
    assert "60" not in found.to_json()


def test_training_without_dp_is_said_at_the_end():
    kept: dict[str, object] = {}
    with audit_records(
        kept, torch.optim.SGD([torch.zeros(3)], lr=0.1), delta=1e-5
    ):
        pass
    found = final_answer(kept, [np.zeros(3)])
    assert all(line.theory == math.inf for line in found.lines)


def test_an_error_tells_nothing_of_what_a_context_holds():
    context = Context(
        0, 7, {"hospital": "secret"}, RecordDict(), {"site": "secret"}
    )
    with pytest.raises(LookupError, match="a Context that holds") as raised:
        final_answer(context, [])
    assert "secret" not in str(raised.value)


def test_what_cannot_be_read_is_left_as_it_is(tmp_path):
    path = tmp_path / "records.npz"
    path.write_bytes(b"damaged")
    with audit_records(
        tmp_path, small_silo(), delta=1e-5, sample_rate=0.25
    ) as audit:
        pass
    assert path.read_bytes() == b"damaged"
    assert audit.answer().canaries == 0
