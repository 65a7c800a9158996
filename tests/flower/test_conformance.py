"""Many small apps as strangers write them, each without and with an audit: it may not do harm.

The apps are in `tests/apps`, one a file, and the checks in `tests/support/no_harm.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import no_harm
import numpy as np
import pytest
from app_runs import Outcome, run_app
from digits_task import RATE, digits
from every_app import CASES

from fl_epe.flower import InProcessGrid

Runs = Callable[[str], tuple[Outcome, Outcome]]
# One app for each kind of behaviour is tried by default, all others with -m slow.
TELLING = {
    "attribute_writes": "the app sets and deletes attributes of its strategy while it runs",
    "clients_by_node_id": "the strategy fails on nodes that it did not ask",
    "delta_replies": "clients answer with updates, not models",
    "drops_replies": "the strategy leaves replies out, canaries' among them",
    "heavy_clients": "clients have unequal weights, under Flower's DP",
    "inconsistent_replies": "the run ends with an error",
    "local_noise": "clients add noise of their own, and nothing can be measured",
    "nan_replies": "clients answer with NaN, and the strategy drops them",
    "one_round_starts": "many calls of start are one run",
    "privacy_spent": "Flower's DP with an accountant: canaries answer in the place of clients",
}


def _apps(
    names: Iterable[str], marks: Mapping[str, pytest.MarkDecorator]
) -> Any:
    slow = {name: [pytest.mark.slow] for name in CASES if name not in TELLING}
    more = {name: [mark] for name, mark in marks.items()}
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(n, marks=[*slow.get(n, []), *more.get(n, [])])
            for n in names
        ],
        scope="module",  # an app's tests follow each other, so that one worker runs it
    )


ENDS_WELL = [name for name, case in CASES.items() if case.raises is None]
every_app = _apps(CASES, {})
every_app_that_ends_well = _apps(ENDS_WELL, {})

# It averages a metric itself, without weights. Canaries answer with the weighted average, as
# Flower's strategies weight: no value leaves both averages as they are.
_OWN_AVERAGE = "a metric that the strategy averages itself, without weights, moves a little"
KNOWN_LIMITS = {"partial_replies": pytest.mark.xfail(reason=_OWN_AVERAGE)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The outcomes of an app, without an audit and with one; each is run once, in this process."""

    def outcome(name: str, *, audited: bool) -> Outcome:
        folder = tmp_path_factory.mktemp(name) / "run"
        with InProcessGrid(CASES[name].client_app, CASES[name].nodes) as grid:
            return run_app(CASES[name], grid, folder, audited=audited)

    @functools.cache
    def both(name: str) -> tuple[Outcome, Outcome]:
        return outcome(name, audited=False), outcome(name, audited=True)

    return both


@every_app
def test_the_app_itself_runs(name: str, runs: Runs) -> None:
    plain, _ = runs(name)
    assert type(plain.error) is (CASES[name].raises or type(None)), plain.error
    assert plain.rounds


@every_app
def test_an_audited_run_ends_as_without(name: str, runs: Runs) -> None:
    no_harm.check_end(*runs(name))


@every_app_that_ends_well
def test_real_clients_are_asked_and_answer_as_without(
    name: str, runs: Runs
) -> None:
    no_harm.check_clients(*runs(name))


@_apps(ENDS_WELL, KNOWN_LIMITS)
def test_real_metrics_of_the_first_round_are_equal(
    name: str, runs: Runs
) -> None:
    no_harm.check_metrics(*runs(name))


@every_app_that_ends_well
def test_what_the_strategy_recorded_is_of_the_same_kind(
    name: str, runs: Runs
) -> None:
    no_harm.check_recorded(*runs(name))


@every_app_that_ends_well
def test_the_model_differs_by_the_canaries_share_at_most(
    name: str, runs: Runs
) -> None:
    no_harm.check_models(CASES[name], *runs(name))


@every_app
def test_the_report_says_an_epsilon_or_why_there_is_none(
    name: str, runs: Runs
) -> None:
    no_harm.check_report(CASES[name], runs(name)[1])


@_apps([name for name, case in CASES.items() if not case.measurable], {})
def test_where_nothing_was_measured_nothing_was_changed(
    name: str, runs: Runs
) -> None:
    no_harm.check_unchanged(*runs(name))


@pytest.mark.parametrize("partition", range(8))
def test_training_never_widens_a_distance(partition: int) -> None:
    """The curvature λ of the loss is at most half that of the inputs; a step is safe below 2/λ."""
    inputs = digits()[0][
        slice(partition, None, 8 if partition % 2 == 0 else 16)
    ]
    with_bias = np.hstack([inputs, np.ones((len(inputs), 1))])
    curvature = (
        np.linalg.eigvalsh(with_bias.T @ with_bias / len(inputs))[-1] / 2
    )
    assert curvature < 2 / RATE
