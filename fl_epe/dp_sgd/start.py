"""`audit_dp_sgd` draws the canaries and their steps, and makes the audit of a run of DP-SGD."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_epe.auditing import LEAST_FOR_NULL, FaultBook, RunAuditor
from fl_epe.checks import check_rate, rename_arguments
from fl_epe.dp_sgd.audit import DPSGDAudit, logger
from fl_epe.dp_sgd.optimizers import PlainDPSGD, Steps
from fl_epe.files import run_folder
from fl_epe.loggers import Loggers, RunLogger
from fl_epe.schedules import Cohort, Poisson, ShuffledEpochs
from fl_epe.seeding import generator

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

# By default, the canaries of a step are this share of an expected batch, but a run has at least
# 2 canaries and at most this number.
_CANARY_SHARE = 0.1
_MAX_CANARIES = 1000
# The index of the random stream that draws the canaries' steps.
_SCHEDULE = 0


def audit_dp_sgd(
    optimizer: DPOptimizer | PlainDPSGD,
    *,
    delta: float,
    num_canaries: int | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    participations: float = 1,
    unobserved: int | None = None,
    full_knowledge: bool = True,
    seed: int | None = None,
    log_to: str | Sequence[str | RunLogger] = (),
) -> DPSGDAudit:
    """An audit of a run of DP-SGD, as a context: ``with … as audit:`` around training.

    Each canary represents one example. Its gradient has a random direction and the clip norm as
    its norm, and is added to the clipped gradients before the noise. By default its steps are drawn
    as Poisson sampling draws examples, at the run's own sampling rate. Nothing else changes:
    noise, denominators, accounting and torch's random numbers stay as they are.

    Args:
        optimizer: an Opacus ``DPOptimizer`` (as ``PrivacyEngine().make_private`` returns it), with
            flat, adaptive or ghost clipping, in one process; or a `PlainDPSGD`.
        delta: the target δ.
        num_canaries: the number of canaries that may take part, at least 2. By default, a tenth
            of the expected batch of a step, divided by the sampling rate, and at most 1,000.
        sample_rate: the probability that a canary is in a step (default: the sampling rate of
            ``PrivacyEngine``).
        steps: the number of steps of the run. If it is given, each canary takes part in
            ``participations`` steps, and ``sample_rate`` must not be given.
        participations: the number of steps of a canary, with ``steps``.
        unobserved: the number of canaries that are only scored. By default, a quarter of
            ``num_canaries``; with ``full_knowledge=False`` as many as ``num_canaries``, as the
            null distribution is then not known. In both cases at least 20.
        full_knowledge: whether the adversary knows the gradients of all real examples and subtracts
            them from every step, as the definition of DP allows. Otherwise they act as noise.
        seed: the seed of the canaries and their steps (default: the operating system's
            entropy). Keep it secret until training has ended.
        log_to: the loggers of each step, see `fl_epe.loggers`; their files are under ``runs``.

    Raises:
        TypeError: if ``optimizer`` is neither of them.
        ValueError: for an argument out of range, or an optimizer that cannot be audited.
    """
    audited_steps = Steps(optimizer)
    batch_size = audited_steps.batch_size
    schedule: ShuffledEpochs | None = None
    if steps is None:
        rate = _sampling_rate(audited_steps, sample_rate, participations)
    elif sample_rate is not None:
        raise ValueError(
            f"Expected steps={steps} or sample_rate={sample_rate}, not both."
        )
    else:
        with rename_arguments(rounds="steps", epochs="participations"):
            schedule = ShuffledEpochs(steps, participations)
        rate = participations / steps
    if num_canaries is None:
        count = max(_CANARY_SHARE * batch_size / rate, 2)
        num_canaries = int(min(count, _MAX_CANARIES))
    if unobserved is None:
        count = num_canaries // 4 if full_knowledge else num_canaries
        unobserved = max(LEAST_FOR_NULL, count)
    if seed is None:
        seed = secrets.randbits(128)
    auditor = RunAuditor(
        num_canaries,
        unobserved,
        seed=seed,
        delta=delta,
        server="DP-SGD",
        series=("others",),
        window=1,  # the noise of a step is fresh
        faults=FaultBook("step"),
    )
    expected_canaries = num_canaries * rate
    decimals = 1 if expected_canaries < 100 else 0
    also_known = "every real example's gradient in every step"
    design = {
        "task": f"DP-SGD with {audited_steps.description}",
        "participations": None if schedule is None else participations,
        "sample_rate": rate if schedule is None else None,
        "share": expected_canaries / batch_size,
        "num_canaries": num_canaries,
        "unobserved": unobserved,
        "full_knowledge": full_knowledge,
        "also_known": also_known if full_knowledge else None,
    }
    rng = generator(seed, _SCHEDULE)
    plan = (
        f"About {expected_canaries:.{decimals}f} canaries join a step, beside an expected"
        f" batch of {batch_size:g} examples: {design['share']:.1%} of its size."
    )
    return DPSGDAudit(
        audited_steps,
        auditor,
        cohorts=_cohorts(schedule, rate, num_canaries, rng),
        design=design,
        plan=plan,
        loggers=Loggers(log_to, run_folder("dp-sgd"), logger.warning),
    )


def _sampling_rate(
    steps: Steps, sample_rate: float | None, participations: float
) -> float:
    """The probability that a canary is in a step: ``sample_rate``, or the optimizer's rate."""
    if participations != 1:
        raise ValueError(
            f"Expected steps=… with participations={participations}: without the number of steps,"
            " canaries are drawn at a rate."
        )
    rate = steps.sample_rate if sample_rate is None else sample_rate
    if rate is None:
        raise ValueError(
            "Expected sample_rate=… (the probability of an example to be in a batch) or steps=…"
            f" (of the run): {steps.description} does not say how batches are drawn."
        )
    check_rate("sample_rate", rate)
    return rate


def _cohorts(
    schedule: ShuffledEpochs | None,
    rate: float,
    canaries: int,
    rng: np.random.Generator,
) -> Callable[[int], Cohort]:
    """A function from the number of accumulated batches to the canaries of the next step."""
    if schedule is None:
        return lambda batches: next(
            Poisson(1, min(1.0, batches * rate)).cohorts(canaries, rng)
        )
    # A run may have more steps than planned, which no canary joins.
    cohorts = schedule.cohorts(canaries, rng)
    return lambda _: next(cohorts, np.empty(0, np.int64))
