"""A silo's answer: ε of one of its records against each adversary, from the stored results."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.accounting import epsilon_of_signals, tightest, upper_bounds
from fl_epe.auditing import (
    Adversary,
    AuditRecord,
    CanaryCosines,
    FederationFacts,
    NotMeasured,
    SiloAdversary,
    SiloAnswer,
    SiloLine,
    answer,
)
from fl_epe.auditing.record import quotients
from fl_epe.checks import Floats
from fl_epe.dp_sgd import SeenSteps, StepFindings
from fl_epe.schedules import ParticipationLaw
from fl_epe.silos.memory import SiloHistory, SiloMemory, UploadFacts
from fl_epe.silos.places import reason_of
from fl_epe.wording import counted, number, unit_of_records

_CONFIDENCE = 0.95
# Confidence of a lower bound above theory: such a bound accuses the silo of a defect.
_ACCUSING_CONFIDENCE = 0.9999

# No adversary knows the steps in which a record was sampled.
_EVERY_RELEASE = Adversary("all", knows_rounds=False)
_LAST_RELEASE = Adversary("final", knows_rounds=False)

# Shares of uploads in averages are estimates. With a smaller relative spread they count as equal.
_MIN_SHARE_SPREAD = 0.05

# The energy of uploads differs from that of the claimed noise if the difference exceeds this
# fraction of the claim plus this number of standard errors.
_ENERGY_TOLERANCE = 0.02
_STANDARD_ERRORS = 5.0

# With a larger ratio of the uploads' energy to that of the claimed noise, uploads contain more than
# the sums of the steps, and ε is not measured.
_MAX_ENERGY_RATIO = 1.5


def brief_answer(memory: SiloMemory) -> SiloAnswer:
    """The answer after each round: the number of rounds, and faults that are quick to find."""
    reason = (
        memory.plan.too_small
        or "ε is computed once the silo has the last model"
    )
    return SiloAnswer(
        silo=memory.plan.silo,
        unit=unit_of_records(memory.plan.records),
        delta=memory.plan.delta,
        confidence=_CONFIDENCE,
        rounds=memory.rounds,
        canaries=memory.uploads.canaries_seen,
        lines=tuple(
            SiloLine(adversary, reason=reason) for adversary in _MEASURES
        ),
        faults=tuple(_faults(memory, StepFindings())),
    )


def answer_of(
    memory: SiloMemory, facts: FederationFacts | None = None
) -> SiloAnswer:
    """The answer so far.

    Args:
        memory: the stored results of the silo's rounds.
        facts: facts about the federation if the silo has the last model; else ``None``.
    """
    history = memory.history
    results = _Results(memory, facts)
    findings = results.findings
    notes = [f"not checked: {text}" for text in findings.unseen]
    notes += [f"the audit stood back: {text}" for text in history.stood_back]
    design = None
    rounds = history.rounds_with_steps
    if memory.plan.share_design and rounds:
        design = {
            "sampling rate": max(steps.sampling_rate for steps in rounds),
            "steps": float(history.num_steps),
            "expected batch": memory.plan.batch,
            "noise multiplier": history.noise_multiplier,
        }
    return dataclasses.replace(
        brief_answer(memory),
        lines=tuple(results.line(adversary) for adversary in _MEASURES),
        faults=tuple(_faults(memory, findings)),
        notes=tuple(notes),
        design=design,
        records=results.shared_records() if memory.plan.share_scores else None,
    )


def unmeasured(
    silo: str, unit: str, delta: float, history: SiloHistory
) -> SiloAnswer:
    """The answer of a silo that no canary could join, with the reason."""
    faults = [f"{name} trained without DP-SGD" for name in history.not_private]
    reasons = [*faults, *history.stood_back, "no round was audited"]
    theory = math.inf if faults else None
    return SiloAnswer(
        silo=silo,
        unit=unit,
        delta=delta,
        confidence=_CONFIDENCE,
        rounds=sum(history.not_private.values()),
        canaries=0,
        lines=tuple(
            SiloLine(adversary, theory=theory, reason=reasons[0])
            for adversary in _MEASURES
        ),
        faults=tuple(faults),
    )


def _faults(memory: SiloMemory, findings: StepFindings) -> Iterator[str]:
    """How the silo's training differs from what its privacy accounting assumes."""
    history = memory.history
    yield from _rounds_without_dp(memory)
    yield from findings.faults
    steps = history.num_steps
    if history.accounted is not None and history.accounted < steps:
        share = f"{history.accounted / steps:.0%} of the steps"
        if memory.plan.share_design:
            share = f"{history.accounted:,} of {counted(steps, 'step')}"
        yield f"its accountant counts {share}: the ε that it states is of those alone"
    energy_ratio = _energy_ratio(memory)
    if energy_ratio is not None and energy_ratio < 1:
        noise_ratio = number(math.sqrt(energy_ratio))
        yield f"its uploads have {noise_ratio} times the noise that is claimed"


def _rounds_without_dp(memory: SiloMemory) -> Iterator[str]:
    for name, rounds in memory.history.not_private.items():
        yield f"{name} trained without DP-SGD {_in_rounds(rounds, memory)}"


def _in_rounds(count: int, memory: SiloMemory) -> str:
    return f"in {count} of {counted(memory.rounds, 'round')}"


def _energy_ratio(memory: SiloMemory) -> float | None:
    """The uploads' energy divided by that of the claimed noise, if they differ significantly.

    The canaries' energy is subtracted first. ``None`` stands for energies that may be equal.
    """
    dim = memory.plan.dim
    uploads = memory.history.uploads
    energies = np.array([upload.energy for upload in uploads])
    canary_energies = np.array([upload.canaries for upload in uploads])
    noise_energies = np.array([dim * upload.variance for upload in uploads])
    claimed = float(noise_energies.sum())
    if not claimed > 0:
        return None
    # The canaries' directions are not quite orthogonal, so a difference may be below 0.
    ratio = max(float(np.sum(energies - canary_energies)) / claimed, 0.0)
    # The standard error has parts from the energy of the noise, from the products of noise and
    # canaries, and from the products of canaries with each other.
    variances = 2 * noise_energies**2 + 4 * noise_energies * canary_energies
    error_with_noise = math.sqrt(float(np.sum(variances) / dim))
    error_of_canaries = math.sqrt(2 / dim) * float(canary_energies.sum())
    error = error_with_noise + error_of_canaries
    tolerance = _ENERGY_TOLERANCE + _STANDARD_ERRORS * error / claimed
    if abs(ratio - 1) > tolerance:
        return ratio
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class _Averages:
    """The T averages that a silo received.

    Attributes:
        record: the record of the canaries' scores with the averages.
        silo_norms: norm of the silo's part of each average, ``(T,)``.
        other_energies: energy of the other silos' part of each average, ``(T,)``.
        silo_dots: inner products of all canaries with the silo's part, ``(T, count)``.
        units: norm of what a record that is drawn once adds to each average, ``(T,)``.
        variances: claimed variance of the silo's noise in a coordinate, ``(T,)``.
    """

    record: AuditRecord
    silo_norms: Floats
    other_energies: Floats
    silo_dots: Floats
    units: Floats
    variances: Floats

    def with_less_noise(self, remaining: Floats) -> AuditRecord:
        """The record for an adversary who subtracts part of the other silos' updates.

        Args:
            remaining: the fraction of their energy that remains in each average, ``(T,)``.
        """
        norms = np.sqrt(self.silo_norms**2 + remaining * self.other_energies)
        # The other silos' updates shrink to this fraction f of their length. What the adversary
        # sees is silo + f·others = (1 − f)·silo + f·average.
        factors = np.sqrt(remaining)

        def cosines(canaries: CanaryCosines) -> Floats:
            silo_dots = (1 - factors)[:, None] * self.silo_dots[:, canaries.ids]
            scales = factors * self.record.norms.means
            average_dots = scales[:, None] * canaries.means
            return quotients(silo_dots + average_dots, norms[:, None])

        values: dict[str, Any] = {
            "running.scores": None,
            "running.signals": None,
            "observed.means": cosines(self.record.observed),
            "unobserved.means": cosines(self.record.unobserved),
            "norms.means": norms,
        }
        return self.record.with_values(**values)


class _Results:
    """The results of a silo's rounds, from which the line of each adversary is computed."""

    def __init__(
        self, memory: SiloMemory, facts: FederationFacts | None
    ) -> None:
        self.memory = memory
        self.plan = memory.plan
        self.history = memory.history
        self.facts = facts
        self.findings = StepFindings()
        if memory.steps is not None:
            self.findings = SeenSteps.of_state(memory.steps).findings(
                self.plan.rate,
                self.plan.batch,
                tells_sizes=self.plan.share_design,
            )
        self.energy_ratio = _energy_ratio(memory)
        # The share of the silo's upload in each average, (T,).
        self.shares = np.array(
            [average.share for average in self.history.averages]
        )
        self.theory = self._theory()

    def _theory(self) -> float | None:
        """The accountant's ε of all steps; ``None`` if it is not known."""
        history = self.history
        rounds = history.rounds_with_steps
        if history.not_private or self.findings.unbounded:
            return math.inf
        # Steps after the audit stood back are not counted.
        if not rounds or history.stood_back:
            return None
        law = ParticipationLaw.of_records(
            [np.ones(steps.num_steps) for steps in rounds],
            [steps.sampling_rate for steps in rounds],
            self.plan.records,
        )
        bounds = upper_bounds(law, history.noise_multiplier, self.plan.delta)
        return tightest(bounds, rounds_known=False).epsilon

    def line(self, adversary: SiloAdversary) -> SiloLine:
        """The line of one adversary."""
        line = SiloLine(adversary, theory=self.theory)
        try:
            reason = next(self._refusals(), "")
            if not reason:
                return _MEASURES[adversary](self, line)
        except NotMeasured as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the other adversaries' lines follow
            reason = f"the audit stood back: {reason_of(error)}"
        return dataclasses.replace(line, reason=reason)

    def _refusals(self) -> Iterator[str]:
        """The reasons for which ε is not measured for any adversary."""
        history = self.history
        for text in _rounds_without_dp(self.memory):
            yield f"{text}, and nothing bounds what it leaks"
        if self.findings.unbounded:
            yield f"{self.findings.unbounded}, so that nothing bounds what it leaks"
        if self.plan.too_small:
            yield self.plan.too_small
        for reason, rounds in history.reasons.items():
            yield f"{reason}, {_in_rounds(rounds, self.memory)}"
        if history.unsent:
            yield history.unsent
        if history.stood_back:
            yield f"the audit stood back: {history.stood_back[0]}"
        if not history.uploads:
            yield "the silo has uploaded nothing so far"
        if any(min(upload.weights) < 0 for upload in history.uploads):
            yield (
                "some steps move the model the other way by the end of a round, as momentum with "
                "weight decay does"
            )
        if (
            self.energy_ratio is not None
            and self.energy_ratio > _MAX_ENERGY_RATIO
        ):
            yield (
                f"uploads have {number(self.energy_ratio)} times the energy of the noise that is "
                "claimed: the model moves between the audit's start and end by more than its steps;"
                " it must be loaded before the audit starts, and sent as it then is"
            )

    def server(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who sees each upload."""
        uploads = self.history.uploads
        record = self.memory.record_of_uploads(self._law(uploads))
        limit = self._linear_limit(
            record.mechanism.participation,
            np.array([upload.unit for upload in uploads]),
            np.array([upload.variance for upload in uploads]),
        )
        doubts = []
        if self.energy_ratio is not None and self.energy_ratio > 1:
            doubts.append(
                f"uploads have {number(self.energy_ratio)} times the energy of the noise that is "
                "claimed: something besides the steps moves the model, and hides records"
            )
        return _measured(line, record, _EVERY_RELEASE, limit, doubts)

    def outsider(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who sees each average."""
        return self._of_averages(line, np.ones(len(self.shares)), [])

    def partner(self, line: SiloLine) -> SiloLine:
        """The line of a silo that subtracts its own upload, and those of its allies."""
        facts = self.facts
        silos = self.plan.silos
        allies = 1
        if facts is not None:
            silos = facts.silos or silos
            allies = facts.allies
        if silos is None:
            raise NotMeasured("how many silos there are is not known (silos=…)")
        if silos < 2:
            raise NotMeasured("there is no other silo")
        doubts = []
        if facts is not None and facts.remaining_energies:
            # There is one fraction for each average that has an upload of this silo;
            # `_rounds_of_averages` refuses another number of uploads.
            remaining = np.ones(len(self.shares))
            indices = np.flatnonzero(self.shares)
            remaining[indices] = 0.0
            for i, fraction in zip(
                indices, facts.remaining_energies, strict=False
            ):
                remaining[i] = fraction
        elif allies >= silos - 1:
            remaining = np.zeros(len(self.shares))
        elif self.plan.silos is not None:
            fraction = (silos - 1 - allies) / (silos - 1)
            remaining = np.full(len(self.shares), fraction)
            doubts.append(
                "the other silos are assumed to add equally much to an average"
            )
        else:
            raise NotMeasured(
                "how much each of the other silos adds to an average is not known (silos=… takes "
                "them to be alike)"
            )
        return self._of_averages(line, remaining, doubts)

    def public(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who has the last model."""
        self._check_server()
        if self.facts is None:
            raise NotMeasured("the silo has not seen the last model")
        if self.history.rewound:
            raise NotMeasured(
                "the server went back to an earlier model during the run"
            )
        limit = self._linear_limit_of_last_model()
        record = self._averages.record
        return _measured(line, record, _LAST_RELEASE, limit, [])

    def _check_server(self) -> None:
        """Refuse averages if the server does more than the silo was told, or loses all uploads."""
        facts = self.facts
        server = self.plan.server
        if facts is not None:
            if facts.server != "sgd":
                raise NotMeasured(
                    f"the server moves the model by {facts.server}, not by averages"
                )
            has_rate = facts.learning_rate == server.learning_rate
            if not has_rate or facts.momentum != server.momentum:
                raise NotMeasured(
                    f"the server has learning rate {facts.learning_rate:g} and momentum "
                    f"{facts.momentum:g}, which the silo was not told (server=…)"
                )
        if self.history.momentum:
            raise NotMeasured(
                "averages hold more of earlier uploads than the silo was told, as by a server with "
                "momentum (server=…)"
            )
        if not self.shares.any():
            raise NotMeasured("no upload of the silo is seen in an average")

    def _of_averages(
        self, line: SiloLine, remaining: Floats, doubts: list[str]
    ) -> SiloLine:
        """The line of an adversary who sees averages.

        Args:
            line: the line of that adversary, with its theory.
            remaining: fraction of the other silos' energy that the adversary cannot subtract from
                each average, ``(T,)``.
            doubts: the doubts about this line.
        """
        self._check_server()
        rounds = self._rounds_of_averages()
        # A silo's average may span several rounds, of which one has its upload. The adversary sees
        # the average of that round alone, with 1/rounds of the other silos' energy.
        remaining = remaining / rounds
        joint = int(np.sum(rounds > 1))
        if joint:
            doubts.append(
                f"{counted(joint, 'average')} could be seen only together with "
                "those of rounds without this silo, which are assumed to be alike"
            )
        if self.facts is None:
            doubts.append(
                "the silo is assumed to be in every round, and the last average is missing"
            )
        averages = self._averages
        record = averages.record
        if np.any(remaining < 1):
            record = averages.with_less_noise(remaining)
        other_variances = remaining * averages.other_energies / self.plan.dim
        limit = self._linear_limit(
            record.mechanism.participation,
            averages.units,
            averages.variances + other_variances,
        )
        return _measured(line, record, _EVERY_RELEASE, limit, doubts)

    @functools.cached_property
    def _averages(self) -> _Averages:
        averages = self.history.averages
        # Before the first upload an average has index −1; its share is then 0.
        indices = [average.upload for average in averages]
        uploads = [self.history.uploads[i] for i in indices]
        law = self._law(
            [
                upload if average.share else None
                for average, upload in zip(averages, uploads, strict=True)
            ]
        )
        record = self.memory.record_of_averages(law)
        squares = self.shares**2
        energies = squares * np.array([upload.energy for upload in uploads])
        upload_dots = self.memory.uploads.state()["dots.mean"]
        return _Averages(
            record=record,
            silo_norms=np.sqrt(energies),
            other_energies=np.maximum(record.norms.means**2 - energies, 0.0),
            silo_dots=self.shares[:, None] * upload_dots[indices],
            units=self.shares * np.array([upload.unit for upload in uploads]),
            variances=squares
            * np.array([upload.variance for upload in uploads]),
        )

    def _rounds_of_averages(self) -> np.ndarray:
        """Number of the federation's rounds that each average of the silo spans, ``(T,)``."""
        facts = self.facts
        rounds = np.ones(len(self.shares))
        if facts is None:
            return rounds
        indices = np.flatnonzero(self.shares)
        if len(indices) != len(facts.upload_rounds):
            raise NotMeasured(
                f"{counted(len(facts.upload_rounds), 'upload')} arrived, and the silo sees "
                f"{len(indices)} of them in averages"
            )
        rounds[indices] = np.diff([*facts.upload_rounds, facts.rounds + 1])
        return rounds

    def _law(self, uploads: Sequence[UploadFacts | None]) -> ParticipationLaw:
        """The law of a record in releases, each with one of these uploads or with none."""
        weights = [upload.weights if upload else [] for upload in uploads]
        return ParticipationLaw.of_records(
            [np.array(of_steps) for of_steps in weights],
            [upload.rate if upload else 1.0 for upload in uploads],
            self.plan.records,
        )

    def _linear_limit(
        self, law: ParticipationLaw, units: Floats, variances: Floats
    ) -> float:
        """The linear limit of ε, see `SiloLine`.

        Args:
            law: the participation law of a record in the releases.
            units: norm of what a record that is drawn once adds to each release.
            variances: variance of the noise in a coordinate of each release.
        """
        if not np.all(variances > 0):
            return math.inf
        signals = units / np.sqrt(variances)
        return epsilon_of_signals(signals, self.plan.delta, law.events)

    def _linear_limit_of_last_model(self) -> float:
        """The linear limit for the sum of all averages."""
        averages = self._averages
        indices = np.flatnonzero(self.shares)
        shares = self.shares[indices]
        uploads = [
            self.history.uploads[self.history.averages[i].upload]
            for i in indices
        ]
        units = averages.units[indices]
        if np.ptp(shares) < _MIN_SHARE_SPREAD * shares.mean():
            units = shares.mean() / shares * units
        weights = np.concatenate(
            [
                unit * np.array(upload.weights)
                for unit, upload in zip(units, uploads, strict=True)
            ]
        )
        other_variances = averages.other_energies[indices] / self.plan.dim
        variance = np.sum(averages.variances[indices] + other_variances)
        law = ParticipationLaw.of_records(
            [weights / weights.mean()],
            [max(upload.rate for upload in uploads)],
            self.plan.records,
        )
        return self._linear_limit(
            law, weights.mean(keepdims=True), np.array([variance])
        )

    def shared_records(self) -> dict[str, str]:
        """The record of the averages as a base64 file, if any, without the canaries' seed."""
        try:
            record = self._averages.record
        except (NotMeasured, ValueError, LookupError):
            return {}
        record = dataclasses.replace(
            record, provenance=dataclasses.replace(record.provenance, seeds={})
        )
        with tempfile.TemporaryDirectory() as folder:
            path = record.save(Path(folder, "averages.npz"))
            return {"averages": base64.b64encode(path.read_bytes()).decode()}


def _measured(
    line: SiloLine,
    record: AuditRecord,
    adversary: Adversary,
    limit: float,
    doubts: list[str],
) -> SiloLine:
    """A line with ε of a record.

    Args:
        line: the line of the adversary, with its theory.
        record: the record of what the adversary sees.
        adversary: whether the adversary sees every release, or the last one.
        limit: the linear limit of ε.
        doubts: the doubts about this line.
    """
    result = answer(record, adversary, confidence=_CONFIDENCE)
    if result.contradicted:
        doubts = [
            *doubts,
            "what is proved is above the interval, which is not to be trusted",
        ]
    line = dataclasses.replace(
        line,
        linear_limit=limit,
        releases=1 if adversary.sees == "final" else record.rounds,
        doubts=tuple(doubts),
    )
    if result.estimate is None:
        return dataclasses.replace(line, reason=result.reason)
    line = dataclasses.replace(
        line,
        epsilon=result.estimate.epsilon,
        low=result.estimate.low,
        high=result.estimate.high,
        scale=None if result.fit is None else result.fit.scale,
        proved=result.proved or None,
    )
    if line.exceeds_theory:
        # At the usual confidence, a bound is above theory by chance in up to 5% of lines.
        result = answer(record, adversary, confidence=_ACCUSING_CONFIDENCE)
        line = dataclasses.replace(line, proved=result.proved or None)
    return line


_MEASURES: dict[SiloAdversary, Callable[[_Results, SiloLine], SiloLine]] = {
    "server": _Results.server,
    "partner": _Results.partner,
    "outsider": _Results.outsider,
    "public": _Results.public,
}
