"""Apps in the shapes of Flower's examples, audited with the defaults: they end as without.

Each is in `tests/apps/frameworks`, and evaluates every round's model on the server. An audit may
cost at most a tenth of what training gained.
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

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of frameworks, for users


def test_every_app_is_tried():
    folder = Path(__file__).parents[1] / "apps" / "frameworks"
    assert {path.stem for path in folder.glob("*.py")} - NO_APPS == set(NEEDS)


@pytest.fixture(params=NEEDS)
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


def test_an_audited_app_ends_as_without_and_learns_as_well(case, tmp_path):
    outcomes = []
    for audited in (False, True):
        with InProcessGrid(case.client_app, case.nodes) as grid:
            folder = tmp_path / f"audited-{audited}"
            outcomes.append(run_app(case, grid, folder, audited=audited, canaries=None))
    plain, audited = outcomes
    no_harm.check_end(plain, audited)
    no_harm.check_clients(plain, audited)
    no_harm.check_metrics(plain, audited)
    no_harm.check_recorded(plain, audited)
    no_harm.check_report(case, audited)
    first, *_, last = scores(plain)
    *rest, found = scores(audited)
    assert rest[0] == first
    assert abs(last - first) > 0.3  # it does learn
    assert (found - first) / (last - first) > LEAST_KEPT
