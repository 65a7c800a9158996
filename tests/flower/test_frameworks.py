"""Apps in the shapes of Flower's examples, audited with the defaults: they end as without.

Each is in `tests/apps/frameworks`, and evaluates every round's model on the server. An audit may
cost at most a tenth of what training gained, or one round of ten. Accuracy, or loss, after ten
rounds without and with it (2 cores, 26 November 2026)::

    custom_mods             0.855  0.841
    frozen_encoder          1.000  1.000
    huggingface_trainer     0.804  0.754  one round less: 0.742
    lightning_module        0.987  0.983
    lora_adapters           0.918  0.908
    opacus_clients          0.895  0.887
    sklearn_logistic        0.955  0.955
    start_with_checkpoints  0.967  0.964
    table                   0.137  0.145  loss, from 0.687
    torch_quickstart        0.971  0.972
    variational_autoencoder 2.69   2.76   loss, from 15.6

`table` found that canaries could make batch normalisation's variances negative: from round 5 on the
network's output was NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import no_harm
import pytest
from app_case import AppCase
from app_runs import Outcome, run_app
from every_app import case_named

from fl_epe.flower import InProcessGrid

NEEDS = {
    "custom_mods": (),
    "frozen_encoder": ("transformers",),
    "huggingface_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
    "lora_adapters": ("transformers", "peft"),
    "opacus_clients": ("opacus",),
    "sklearn_logistic": (),
    "start_with_checkpoints": (),
    "table": (),
    "torch_quickstart": (),
    "variational_autoencoder": (),
}
"""Packages that an app needs beside PyTorch and scikit-learn."""
NO_APPS = {"in_torch", "words"}
LEAST_KEPT = 0.9

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # of frameworks, for users


def test_every_app_is_tried():
    folder = Path(__file__).parents[1] / "apps" / "frameworks"
    assert {path.stem for path in folder.glob("*.py")} - NO_APPS == set(NEEDS)


WEEKLY = {
    "huggingface_trainer",
    "lora_adapters",
    "opacus_clients",
}  # the longest


@pytest.fixture(
    params=[
        pytest.param(x, marks=[pytest.mark.weekly] * (x in WEEKLY))
        for x in NEEDS
    ]
)
def case(request: pytest.FixtureRequest) -> AppCase:
    for package in NEEDS[request.param]:
        pytest.importorskip(package)
    return case_named(f"frameworks.{request.param}")


def scores(outcome: Outcome) -> Iterator[float]:
    """What the server found of each round's model: an accuracy or a loss."""
    for metrics in outcome.finished().evaluate_metrics_serverapp.values():
        (value,) = metrics.values()
        assert isinstance(value, float)
        yield value


@pytest.mark.weekly
def test_an_audited_app_ends_as_without_and_learns_as_well(case, tmp_path):
    outcomes = []
    for is_audited in (False, True):
        with InProcessGrid(case.client_app, case.nodes) as grid:
            folder = tmp_path / f"audited-{is_audited}"
            outcomes.append(
                run_app(case, grid, folder, audited=is_audited, canaries=None)
            )
    plain, audited = outcomes
    no_harm.check_end(plain, audited)
    no_harm.check_clients(plain, audited)
    no_harm.check_metrics(plain, audited)
    no_harm.check_recorded(plain, audited)
    no_harm.check_report(case, audited)
    first, *_, before, last = scores(plain)
    *earlier, last_score = scores(audited)
    assert earlier[0] == first
    assert abs(last - first) > 0.3  # it does learn
    share_kept, a_round_less = (
        (x - first) / (last - first) for x in (last_score, before)
    )
    assert share_kept > min(LEAST_KEPT, a_round_less)
