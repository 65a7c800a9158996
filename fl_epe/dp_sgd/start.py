"""`audit_dp_sgd`: draws the canaries and their steps, and makes the audit of a run of DP-SGD."""

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

_CANARY_SHARE = 0.1  # of an expected batch, by default
_MAX_CANARIES = 1000  # of a run, by default
_SCHEDULE = 0  # stream of the canaries' steps


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
    """An audit to put around a run of DP-SGD: ``with … as audit:``, and train.

    Each canary stands for one example. Its gradient is a random direction as long as the clip norm,
    which joins the clipped gradients before the noise is added. Its steps are drawn before the run:
    by default by coins at the run's own sampling rate, as Poisson sampling draws examples. Nothing
    else changes: noise, denominators, accounting and torch's random numbers stay as they are.

    Args:
        optimizer: an Opacus ``DPOptimizer`` (as ``PrivacyEngine().make_private`` returns it), with
            flat, adaptive or ghost clipping, in one process; or a `PlainDPSGD`.
        delta: target δ.
        num_canaries: canaries that may take part, at least 2. By default a tenth of the expected
            batch of a step, divided by the sampling rate, at most 1,000.
        sample_rate: probability of a canary to be in a step; by default that of ``PrivacyEngine``.
        steps: of the run; instead of coins each canary then takes part in ``participations`` steps.
        participations: see ``steps``.
        unobserved: canaries that are only scored; by default a quarter of ``num_canaries``, or as
            many where ``full_knowledge=False``, as the null is then not known.
        full_knowledge: whether the adversary knows the gradients of all real examples and subtracts
            them from every step, as the definition of DP allows. Otherwise they hide canaries.
        seed: of the canaries and their steps; the operating system's entropy by default. Keep it
            secret until training has ended.
        log_to: where to log each step, see `fl_epe.loggers`; their files are under ``runs``.

    Raises:
        TypeError: if ``optimizer`` is none of these.
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
    expected = num_canaries * rate
    also_known = "every real example's gradient in every step"
    design = {
        "task": f"DP-SGD with {audited_steps.description}",
        "participations": None if schedule is None else participations,
        "sample_rate": rate if schedule is None else None,
        "share": expected / batch_size,
        "num_canaries": num_canaries,
        "unobserved": unobserved,
        "full_knowledge": full_knowledge,
        "also_known": also_known if full_knowledge else None,
    }
    rng = generator(seed, _SCHEDULE)
    plan = (
        f"About {expected:.{1 if expected < 100 else 0}f} canaries join a step, beside an expected"
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
    """Probability of a canary to be in a step: the argument, or that of the optimizer."""
    if participations != 1:
        raise ValueError(
            f"Expected steps=… with participations={participations}."
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
    """The canaries of the next step, by the number of batches that are accumulated for it."""
    if schedule is None:
        return lambda n: next(
            Poisson(1, min(1.0, n * rate)).cohorts(canaries, rng)
        )
    cohorts = schedule.cohorts(canaries, rng)
    return lambda _: next(cohorts, np.empty(0, np.int64))
