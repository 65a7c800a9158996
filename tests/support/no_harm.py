"""What an audit may do to a run, and what it must say: checks of the same app run without and with.

Each raises an `AssertionError`, or what the audited run ended with.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from app_case import AppCase
from app_runs import CANARIES_A_ROUND, Answer, Exchange, Outcome, Weights
from flwr.app import MetricRecord
from numpy.typing import NDArray

from fl_epe.flower import CanaryAudit


def check_all(case: AppCase, plain: Outcome, audited: Outcome) -> None:
    """Every check of this module that a run that ends well has to pass."""
    check_end(plain, audited)
    check_clients(plain, audited)
    check_metrics(plain, audited)
    check_recorded(plain, audited)
    check_models(case, plain, audited)
    check_report(case, audited)


def check_end(plain: Outcome, audited: Outcome) -> None:
    """The audited run ends as the other: with a result, or with the same error."""
    if plain.error is None and audited.error is not None:
        raise audited.error
    assert type(audited.error) is type(plain.error)
    assert str(audited.error) == str(plain.error)
    assert len(audited.rounds) == len(plain.rounds)


def check_clients(plain: Outcome, audited: Outcome) -> None:
    """In round 1, before the models differ, real clients hear and say what they did without.

    All of them but those whose place canaries take.
    """
    audited.finished()
    without, with_audit = plain.rounds[0], audited.rounds[0]
    withheld = len(without.asked) - len(with_audit.asked)
    assert 0 <= withheld <= CANARIES_A_ROUND
    assert _heard(with_audit) <= _heard(without)
    expected = {_key(answer): answer for answer in without.answers}
    assert len(without.answers) - len(with_audit.answers) <= withheld
    for answer in with_audit.answers:
        same = expected[_key(answer)]
        _assert_equal(answer.metrics, same.metrics)
        for array, value in answer.weights.items():
            np.testing.assert_array_equal(value, same.weights[array])


def check_metrics(plain: Outcome, audited: Outcome) -> None:
    """The metrics of round 1 are the same, but for what the audit adds under its own names.

    Where canaries take the place of clients, they are the average over those who were asked.
    """
    without, with_audit = plain.finished(), audited.finished()
    before = _real(without.train_metrics_clientapp.get(1))
    after = _real(with_audit.train_metrics_clientapp.get(1))
    if len(audited.rounds[0].asked) < len(plain.rounds[0].asked):
        answers = audited.rounds[0].answers
        weights = [answer.metrics["num-examples"] for answer in answers]
        before = before and {
            key: np.average(
                [answer.metrics[key] for answer in answers], weights=weights
            )
            for key in before
        }
    _assert_equal(after, before)
    for kind in ("evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert getattr(with_audit, kind).keys() == getattr(without, kind).keys()


def check_recorded(plain: Outcome, audited: Outcome) -> None:
    """What the app reads from its strategy, through the audit, has the same form.

    Lists are as long as without: nothing happened twice, and no canary left a trace of its own.
    """
    plain.finished()
    audited.finished()
    assert _kind(audited.recorded) == _kind(plain.recorded)


def check_models(case: AppCase, plain: Outcome, audited: Outcome) -> None:
    """The model of every round differs no more than the canaries' share explains.

    Names, shapes, types and integers are the same. For the rest write θ and θ' for the models with
    and without the audit. An averaging round maps θ to (1 − s)·F(θ) + s·(θ + L·u), where F(θ) is
    the average of the real replies, s the canaries' share of the weight, L the length of a canary
    and u a mean of unit vectors, so that

        ‖θ_t − θ'_t‖ ≤ ‖F(θ_{t−1}) − F(θ'_{t−1})‖ + s·(L + ‖F(θ_{t−1}) − θ_{t−1}‖).

    The first term is at most g·‖θ_{t−1} − θ'_{t−1}‖. Gradient descent on a convex loss of curvature
    λ with a rate below 2/λ never widens a distance, so that g = 1 for plain averages; an app that
    does more says its g (`AppCase.growth`). In the second term the mean real update is not longer
    than the longest, M, and nor is a canary, which is as long as the median real update: at most
    2·s·M a round. Where canaries take the place of clients, s is the part of the clients that they
    replace, and the same holds for the clients left out.

    A median or a trimmed mean is no average, but moves furthest in a coordinate if all canaries
    lie to one side of everybody: that is tried, with canaries far off on either side.
    """
    bound = 0.0
    audited.finished()
    for exchange, before, after in zip(
        audited.rounds, plain.models[1:], audited.models[1:], strict=True
    ):
        assert _form(after) == _form(before)
        for array, value in before.items():
            if value.dtype.kind in "iub":
                np.testing.assert_array_equal(after[array], value)
        bound = case.growth * bound + _explained(case, exchange)
        assert distance(after, before) <= bound + _rounding(before)


def check_report(case: AppCase, audited: Outcome) -> None:
    """The report says an ε or why there is none; what went wrong is in the faults.

    Without an ε the strategy got every round as if there were no audit (`check_unchanged`).
    """
    audit = audited.audited()
    report = _report(audit)
    number = re.search(r"ε ≈ [0-9]", report)
    if (reason := _not_measured(report)) is None:
        assert number, report
        assert audit.record().num_canaries >= 2
    else:
        assert not number, report
        assert not case.measurable, report
        assert len(reason.split()) >= 3, report
        assert audit.faults
    assert audit.faults or not case.faulty


def check_unchanged(plain: Outcome, audited: Outcome) -> None:
    """If nothing was measured, nothing was changed: the models are the same up to rounding."""
    if (
        _not_measured(_report(audited.audited())) is not None
        and plain.error is None
    ):
        for before, after in zip(plain.models, audited.models, strict=True):
            assert distance(after, before) <= _rounding(before)


def _report(audit: CanaryAudit) -> str:
    """The text of the report, as one line."""
    return " ".join(audit.report().split())


def _not_measured(report: str) -> str | None:
    """The reason that a report begins with if it has no ε; ``None`` if it has one."""
    found = re.match(r"Not measured, as (.+?): it is not known", report)
    return found[1] if found else None


def _heard(exchange: Exchange) -> Counter[tuple[int, str]]:
    """Who got which configuration."""
    pairs = zip(exchange.asked, exchange.configs, strict=True)
    return Counter(
        (node, repr(sorted(config.items()))) for node, config in pairs
    )


def _key(answer: Answer) -> tuple[int, float]:
    """Which of a node's answers this is; a node that answers twice has two losses."""
    loss = answer.metrics.get("loss", 0.0)
    return answer.node, round(loss, 9) if np.isfinite(loss) else -1.0


def _real(metrics: MetricRecord | None) -> dict[str, Any] | None:
    """Metrics of a round without what an audit adds."""
    if metrics is None:
        return None
    found = {
        name: value
        for name, value in metrics.items()
        if not name.startswith("epsilon-")
    }
    return found or None


def _assert_equal(
    found: dict[str, Any] | None, expected: dict[str, Any] | None
) -> None:
    assert (found is None) == (expected is None)
    for key, value in (expected or {}).items():
        np.testing.assert_allclose(
            (found or {})[key], value, rtol=1e-9, equal_nan=True
        )
    assert (found or {}).keys() == (expected or {}).keys()


def _kind(value: object) -> object:
    """The form of a value: keys, lengths, numbers that count, words; of other things the type."""
    if isinstance(value, dict):
        return {key: _kind(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_kind(entry) for entry in value]
    return value if isinstance(value, int | str | None) else type(value)


def _form(weights: Weights) -> list[tuple[str, Any, tuple[int, ...]]]:
    return [(name, value.dtype, value.shape) for name, value in weights.items()]


def _flat(weights: Weights, names: list[str]) -> NDArray[np.float64]:
    return np.concatenate(
        [np.ravel(weights[name]).astype(float) for name in names]
    )


def distance(one: Weights, other: Weights) -> float:
    """Euclidean distance of two models."""
    return float(
        np.linalg.norm(_flat(one, list(one)) - _flat(other, list(one)))
    )


def _rounding(weights: Weights) -> float:
    """A few units in the last place of every entry, the coarsest type counted for all."""
    coarsest = max(
        np.finfo(v.dtype).eps for v in weights.values() if v.dtype.kind == "f"
    )
    return (
        8
        * float(coarsest)
        * (1 + float(np.linalg.norm(_flat(weights, list(weights)))))
    )


def _explained(case: AppCase, exchange: Exchange) -> float:
    """How far canaries move a model in one round at most."""
    good = [
        answer for answer in exchange.answers if _fits(answer, exchange.model)
    ]
    most = max(len(answer.weights) for answer in good)
    updates = np.stack(
        [
            _update(case, answer, exchange)
            for answer in good
            if len(answer.weights) == most
        ]
    )
    if case.robust is not None:
        far = np.full((CANARIES_A_ROUND, updates.shape[1]), 1e6)
        alone = case.robust(updates)
        moved = [
            case.robust(np.vstack([updates, side * far])) - alone
            for side in (-1, 1)
        ]
        return float(np.linalg.norm(np.abs(moved).max(axis=0)))
    weights = [answer.metrics.get("num-examples", 1) for answer in good]
    canaries = CANARIES_A_ROUND * max(weights)
    share = canaries / (canaries + sum(weights))
    return float(2 * share * np.linalg.norm(updates, axis=1).max())


def _update(
    case: AppCase, answer: Answer, exchange: Exchange
) -> NDArray[np.float64]:
    """What a client's answer adds to the arrays that it holds."""
    names = list(answer.weights)
    found = _flat(answer.weights, names)
    return found if case.updates else found - _flat(exchange.model, names)


def _fits(answer: Answer, model: Weights) -> bool:
    return all(
        bool(np.isfinite(value).all()) and value.shape == model[name].shape
        for name, value in answer.weights.items()
    )
