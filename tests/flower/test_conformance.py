"""Many small apps as strangers write them, each without and with an audit: it may not do harm.

An audited run ends as the same run without an audit, the real clients see and say the same, the
model is the same up to the canaries' share, and the report says either an ε or why there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from app_case import AppCase
from app_runs import CANARIES_A_ROUND, Answer, Exchange, Outcome, Weights, real_metrics, run_app
from digits_task import RATE, digits
from every_app import CASES

from fl_epe.flower import CanaryAudit

Runs = Callable[[str, bool], Outcome]
ENDS = [name for name, case in CASES.items() if case.raises is None]
every_app = pytest.mark.parametrize("name", CASES)
every_app_that_ends_well = pytest.mark.parametrize("name", ENDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The outcome of an app, without or with an audit; each is run once."""

    @functools.cache
    def outcome(name: str, audited: bool) -> Outcome:
        return run_app(CASES[name], tmp_path_factory.mktemp(name) / "run", audited=audited)

    return outcome


@every_app
def test_the_app_itself_runs(name: str, runs: Runs) -> None:
    case, plain = CASES[name], runs(name, False)
    assert type(plain.error) is (case.raises or type(None)), plain.error
    assert plain.rounds


@every_app
def test_an_audited_run_ends_as_without(name: str, runs: Runs) -> None:
    plain, audited = runs(name, False), runs(name, True)
    if plain.error is None and audited.error is not None:
        raise audited.error
    assert type(audited.error) is type(plain.error)
    assert str(audited.error) == str(plain.error)
    assert len(audited.rounds) == len(plain.rounds)


@every_app_that_ends_well
def test_real_clients_are_asked_and_answer_as_without(name: str, runs: Runs) -> None:
    """In round 1, before the models differ; all of them but those whose place canaries take."""
    plain, audited = (_ended(runs(name, a)).rounds[0] for a in (False, True))
    withheld = len(plain.asked) - len(audited.asked)
    assert 0 <= withheld <= CANARIES_A_ROUND
    assert _is_part_of(_messages(audited), _messages(plain))
    expected = {_key(answer): answer for answer in plain.answers}
    assert len(plain.answers) - len(audited.answers) <= withheld
    for answer in audited.answers:
        same = expected[_key(answer)]
        _assert_equal(answer.metrics, same.metrics)
        for array, value in answer.weights.items():
            np.testing.assert_array_equal(value, same.weights[array])


@every_app_that_ends_well
def test_real_metrics_of_the_first_round_are_equal(name: str, runs: Runs) -> None:
    """Where canaries take the place of clients, they are the average of those who were asked."""
    plain, audited = _ended(runs(name, False)), _ended(runs(name, True))
    assert plain.result is not None
    assert audited.result is not None
    before = real_metrics(plain.result.train_metrics_clientapp.get(1))
    after = real_metrics(audited.result.train_metrics_clientapp.get(1))
    if len(audited.rounds[0].asked) < len(plain.rounds[0].asked):
        answers = audited.rounds[0].answers
        weights = [answer.metrics["num-examples"] for answer in answers]
        before = before and {
            key: np.average([answer.metrics[key] for answer in answers], weights=weights)
            for key in before
        }
    _assert_equal(after, before)
    for kind in ("evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert getattr(audited.result, kind).keys() == getattr(plain.result, kind).keys()


@every_app_that_ends_well
def test_what_the_strategy_recorded_is_of_the_same_kind(name: str, runs: Runs) -> None:
    """It is read through the audit, as the app's own code would."""
    plain, audited = _ended(runs(name, False)), _ended(runs(name, True))
    assert _kind(audited.recorded) == _kind(plain.recorded)


@every_app_that_ends_well
def test_the_model_differs_by_the_canaries_share_at_most(name: str, runs: Runs) -> None:
    """After every round, in names and types exactly, and in values within a bound.

    Write θ and θ' for the models with and without the audit. An averaging round maps θ to
    (1 − s)·F(θ) + s·(θ + L·u), where F(θ) is the average of the real replies, s the canaries'
    share of the weight, L the length of a canary and u a mean of unit vectors, so that

        ‖θ_t − θ'_t‖ ≤ ‖F(θ_{t−1}) − F(θ'_{t−1})‖ + s·(L + ‖F(θ_{t−1}) − θ_{t−1}‖).

    The first term is at most g·‖θ_{t−1} − θ'_{t−1}‖. Gradient descent on a convex loss with a
    rate below 2/λ never widens a distance (`test_training_never_widens_a_distance`), so that
    g = 1 for plain averages; an app that does more says its g (`AppCase.growth`). In the second,
    the mean real update is not longer than the longest, M, and nor is a canary, which is as long as
    the median real update: at most 2·s·M a round. Where canaries take the place of clients, s is
    the part of the clients that they replace, and the same holds for the clients left out.

    A median or a trimmed mean is no average, but moves furthest in a coordinate if all canaries
    lie to one side of everybody: that is tried, with canaries far off on either side.
    """
    case, plain, audited = CASES[name], _ended(runs(name, False)), _ended(runs(name, True))
    bound = 0.0
    steps = zip(audited.rounds, plain.models[1:], audited.models[1:], strict=True)
    for exchange, before, after in steps:
        assert list(after) == list(before)
        assert [value.dtype for value in after.values()] == [v.dtype for v in before.values()]
        assert [value.shape for value in after.values()] == [v.shape for v in before.values()]
        for array, value in before.items():
            if value.dtype.kind in "iub":
                np.testing.assert_array_equal(after[array], value)
        bound = case.growth * bound + _explained(case, exchange)
        assert _distance(after, before) <= bound + _rounding(before)


@every_app
def test_the_report_says_an_epsilon_or_why_there_is_none(name: str, runs: Runs) -> None:
    case, audit = CASES[name], _audit(runs(name, True))
    if (reason := _not_measured(audit)) is None:
        assert audit.record().num_canaries >= 2
        assert "ε" in audit.report()
    else:
        assert not case.measurable, audit.report()
        assert len(reason.split()) >= 3, audit.report()
        assert audit.faults
    assert audit.faults or not case.faulty


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.measurable])
def test_where_nothing_was_measured_nothing_was_changed(name: str, runs: Runs) -> None:
    """The strategy got every round as if there were no audit."""
    plain, audited = runs(name, False), runs(name, True)
    if _not_measured(_audit(audited)) is not None and plain.result is not None:
        for before, after in zip(plain.models, audited.models, strict=True):
            assert _distance(after, before) <= _rounding(before)


@pytest.mark.parametrize("partition", range(8))
def test_training_never_widens_a_distance(partition: int) -> None:
    """The curvature λ of the loss is at most half that of the inputs; a step is safe below 2/λ."""
    inputs = digits()[0][slice(partition, None, 8 if partition % 2 == 0 else 16)]
    with_bias = np.hstack([inputs, np.ones((len(inputs), 1))])
    curvature = np.linalg.eigvalsh(with_bias.T @ with_bias / len(inputs))[-1] / 2
    assert curvature < 2 / RATE


def _ended(outcome: Outcome) -> Outcome:
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _audit(outcome: Outcome) -> CanaryAudit:
    assert outcome.audit is not None
    return outcome.audit


def _not_measured(audit: CanaryAudit) -> str | None:
    """The reason that a report gives for having no ε; ``None`` if it has one."""
    _, found, reason = " ".join(audit.report().split()).partition("not measured")
    return reason.lstrip(": ").split(". ")[0] if found else None


def _messages(exchange: Exchange) -> list[tuple[int, dict[str, Any]]]:
    return list(zip(exchange.asked, exchange.configs, strict=True))


def _is_part_of(few: list[Any], many: list[Any]) -> bool:
    """Whether one list is another without some of its entries, in the same order."""
    rest: Iterator[Any] = iter(many)
    return all(entry in rest for entry in few)


def _key(answer: Answer) -> tuple[int, float]:
    """Which of a node's answers this is; a node that answers twice has two losses."""
    loss = answer.metrics.get("loss", 0.0)
    return answer.node, round(loss, 9) if np.isfinite(loss) else -1.0


def _assert_equal(found: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    assert (found is None) == (expected is None)
    for key, value in (expected or {}).items():
        np.testing.assert_allclose((found or {})[key], value, rtol=1e-9, equal_nan=True)
    assert (found or {}).keys() == (expected or {}).keys()


def _kind(value: object) -> object:
    """The form of a value: types, keys, and whether there is anything in it."""
    if isinstance(value, dict):
        return {key: _kind(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_kind(entry) for entry in value[:1]]
    return type(value)


def _flat(weights: Weights, names: list[str]) -> np.ndarray:
    return np.concatenate([np.ravel(weights[name]).astype(float) for name in names])


def _distance(one: Weights, other: Weights) -> float:
    return float(np.linalg.norm(_flat(one, list(one)) - _flat(other, list(one))))


def _rounding(weights: Weights) -> float:
    """A few units in the last place of every entry, the coarsest type counted for all."""
    coarsest = max(np.finfo(v.dtype).eps for v in weights.values() if v.dtype.kind == "f")
    return 8 * float(coarsest) * (1 + float(np.linalg.norm(_flat(weights, list(weights)))))


def _explained(case: AppCase, exchange: Exchange) -> float:
    """How far canaries move a model in one round at most."""
    good = [answer for answer in exchange.answers if _fits(answer, exchange.model)]
    updates = np.stack(
        [
            _flat(answer.weights, list(answer.weights))
            - (0 if case.deltas else _flat(exchange.model, list(answer.weights)))
            for answer in good
            if len(answer.weights) == max(len(other.weights) for other in good)
        ]
    )
    if case.robust is not None:
        far = np.full((CANARIES_A_ROUND, updates.shape[1]), 1e6)
        alone = case.robust(updates)
        moved = [case.robust(np.vstack([updates, side * far])) - alone for side in (-1, 1)]
        return float(np.linalg.norm(np.abs(moved).max(axis=0)))
    weights = [answer.metrics["num-examples"] for answer in good]
    canaries = CANARIES_A_ROUND * np.median(weights)
    share = canaries / (canaries + sum(weights))
    return float(2 * share * np.linalg.norm(updates, axis=1).max())


def _fits(answer: Answer, model: Weights) -> bool:
    return all(
        np.isfinite(value).all() and value.shape == model[name].shape
        for name, value in answer.weights.items()
    )
