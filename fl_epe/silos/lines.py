"""What a silo's audit says: a line for each adversary, from what it remembers."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import tempfile
from collections.abc import Iterator
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
from fl_epe.silos.memory import SiloMemory, Told
from fl_epe.silos.places import reason_of
from fl_epe.wording import counted, number

CONFIDENCE = 0.95
_ACCUSING = (
    0.9999  # confidence with which a silo is said to leak more than theory allows
)
_SECRET = Adversary("all", knows_rounds=False)
_ALIKE = 0.05  # relative spread of the uploads' shares of averages that count as one
_MISFIT = 0.02  # of the energy of uploads, beside standard errors
_SURE = 5.0  # of which there are so many
_FOREIGN = (
    1.5  # times the energy of the noise, from which on something else moves the model
)


def brief_answer(memory: SiloMemory) -> SiloAnswer:
    """What a silo says after each round: how many those are, and what is wrong at first sight."""
    reason = memory.plan.too_small or "ε is computed once the silo has the last model"
    return SiloAnswer(
        silo=memory.plan.silo,
        unit=memory.plan.unit,
        delta=memory.plan.delta,
        confidence=CONFIDENCE,
        rounds=memory.rounds,
        canaries=memory.uploads.canaries_seen,
        lines=tuple(SiloLine(adversary, reason=reason) for adversary in _READERS),
        faults=tuple(_faults(memory, StepFindings())),
    )


def answer_of(memory: SiloMemory, facts: FederationFacts | None = None) -> SiloAnswer:
    """What a silo says so far.

    Args:
        memory: of its rounds.
        facts: of the federation, once the last model was seen; ``None`` before.
    """
    plan, told = memory.plan, memory.told
    silo = _Silo(memory, facts)
    lines = tuple(silo.line(adversary) for adversary in _READERS)
    design, records = None, None
    if plan.share_design and told.with_steps:
        steps, rate, z = (list(values) for values in zip(*told.with_steps, strict=True))
        design = {
            "sampling rate": max(rate),
            "steps": float(sum(steps)),
            "expected batch": plan.batch,
            "noise multiplier": min(z),
        }
    if plan.share_scores:
        records = silo.shared_records()
    return dataclasses.replace(
        brief_answer(memory),
        lines=lines,
        faults=tuple(_faults(memory, silo.findings)),
        notes=tuple(_notes(memory, silo.findings)),
        design=design,
        records=records,
    )


def unmeasured(
    silo: str, unit: str, delta: float, told: Told, reason: str
) -> SiloAnswer:
    """What a silo says that no canary could join, and why; ``told`` is of its rounds."""
    theory = math.inf if told.not_private else None
    faults = [f"{name} trained without DP-SGD" for name in told.not_private]
    reason = next(iter([*faults, *told.stood_back]), reason)
    return SiloAnswer(
        silo=silo,
        unit=unit,
        delta=delta,
        confidence=CONFIDENCE,
        rounds=sum(told.not_private.values()),
        canaries=0,
        lines=tuple(SiloLine(name, theory=theory, reason=reason) for name in _READERS),
        faults=tuple(faults),
    )


def _faults(memory: SiloMemory, findings: StepFindings) -> Iterator[str]:
    told = memory.told
    for name, rounds in told.not_private.items():
        yield f"{name} trained without DP-SGD {_in_rounds(rounds, memory)}"
    yield from findings.faults
    steps = sum(count for count, _, _ in told.trained)
    if told.accounted is not None and told.accounted < steps:
        shown = f"{told.accounted:,} of {counted(steps, 'step')}"
        if not memory.plan.share_design:
            shown = f"{told.accounted / steps:.0%} of the steps"
        yield f"its accountant counts {shown}: the ε that it states is of those alone"
    if (ratio := _unexplained(memory)) is not None and ratio < 1:
        yield f"its uploads have {number(math.sqrt(ratio))} times the noise that is claimed"


def _notes(memory: SiloMemory, findings: StepFindings) -> Iterator[str]:
    yield from (f"not checked: {text}" for text in findings.unseen)
    yield from (f"the audit stood back: {text}" for text in memory.told.stood_back)


def _in_rounds(count: int, memory: SiloMemory) -> str:
    return f"in {count} of {counted(memory.rounds, 'round')}"


def _unexplained(memory: SiloMemory) -> float | None:
    """Energy of uploads over that of the noise that is claimed, if these are certainly apart."""
    dim = memory.plan.dim
    rows = [
        (one.energy, one.canaries, dim * one.variance) for one in memory.told.uploads
    ]
    energy, canaries, noise = np.array(rows).reshape(-1, 3).T
    claimed = float(noise.sum())
    if not claimed > 0:
        return None
    ratio = max(
        float(np.sum(energy - canaries)) / claimed, 0.0
    )  # their directions meet
    # Of the noise's own energy, of its products with canaries, and of those among canaries.
    squares = np.sum(2 * noise**2 + 4 * noise * canaries) / dim
    errors = math.sqrt(float(squares)) + math.sqrt(2 / dim) * float(canaries.sum())
    return ratio if abs(ratio - 1) > _MISFIT + _SURE * errors / claimed else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Averages:
    """The averages that a silo saw, T of them.

    Attributes:
        record: of the canaries' scores with them.
        own: norms of the residual of the silo's own upload in each, ``(T,)``.
        rest: energies of the other silos' part, ``(T,)``.
        dots: inner products of all canaries with the silo's own part, ``(T, count)``.
        units: what a record adds once, ``(T,)``.
        variances: of the silo's own noise in a coordinate, as it is claimed, ``(T,)``.
    """

    record: AuditRecord
    own: Floats
    rest: Floats
    dots: Floats
    units: Floats
    variances: Floats

    def in_residual(self, left: Floats) -> AuditRecord:
        """The record as if this share of the other silos' energy were in each average, ``(T,)``."""
        lengths = np.sqrt(self.own**2 + left * self.rest)
        kept = np.sqrt(left)

        def seen(side: CanaryCosines) -> Floats:
            mine = (1 - kept)[:, None] * self.dots[:, side.ids]
            found = mine + (kept * self.record.norms.means)[:, None] * side.means
            return quotients(found, lengths[:, None])

        return self.record.with_values(
            **dict.fromkeys(("running.scores", "running.signals")),
            **{
                "observed.means": seen(self.record.observed),
                "unobserved.means": seen(self.record.unobserved),
                "norms.means": lengths,
            },
        )


class _Silo:
    """The views of a silo's adversaries."""

    def __init__(self, memory: SiloMemory, facts: FederationFacts | None) -> None:
        self.memory, self.facts = memory, facts
        plan, told = memory.plan, memory.told
        self.findings = StepFindings()
        if memory.steps is not None:
            seen = SeenSteps.of_state(memory.steps)
            self.findings = seen.findings(
                plan.rate, plan.batch, tells_sizes=plan.share_design
            )
        trained = told.with_steps
        self.noise = min((z for _, _, z in trained), default=0.0)
        self.theory: float | None = None
        if told.not_private or self.findings.unbounded:
            self.theory = math.inf
        elif trained and not told.stood_back:  # which leaves steps uncounted
            steps = [np.ones(count) for count, _, _ in trained]
            rates = [rate for _, rate, _ in trained]
            law = ParticipationLaw.of_records(steps, rates, plan.records)
            bounds = upper_bounds(law, self.noise, plan.delta)
            self.theory = tightest(bounds, rounds_known=False).epsilon

    @functools.cached_property
    def _unexplained(self) -> float | None:
        return _unexplained(self.memory)

    def line(self, adversary: SiloAdversary) -> SiloLine:
        """What one adversary learns."""
        blank = SiloLine(adversary, theory=self.theory)
        try:
            self._check()
            found: SiloLine = _READERS[adversary](self, blank)
            return found
        except NotMeasured as error:
            return dataclasses.replace(blank, reason=str(error))
        except Exception as error:  # noqa: BLE001 - the other lines are said
            reason = f"the audit stood back: {reason_of(error)}"
            return dataclasses.replace(blank, reason=reason)

    def _check(self) -> None:
        """Refuse what holds for all adversaries.

        Raises:
            NotMeasured: with the reason.
        """
        memory, told = self.memory, self.memory.told
        for name, rounds in told.not_private.items():
            raise NotMeasured(
                f"{name} trained without DP-SGD {_in_rounds(rounds, memory)}, and nothing bounds "
                "what it leaks"
            )
        if self.findings.unbounded:
            raise NotMeasured(
                f"{self.findings.unbounded}, so that nothing bounds what it leaks"
            )
        if memory.plan.too_small:
            raise NotMeasured(memory.plan.too_small)
        for reason, rounds in told.reasons.items():
            raise NotMeasured(f"{reason}, {_in_rounds(rounds, memory)}")
        if told.unsent:
            raise NotMeasured(told.unsent)
        if told.stood_back:
            raise NotMeasured(f"the audit stood back: {told.stood_back[0]}")
        if not told.uploads:
            raise NotMeasured("the silo has uploaded nothing so far")
        if any(weight < 0 for upload in told.uploads for weight in upload.weights):
            raise NotMeasured(
                "some steps move the model the other way by the end of a round, as momentum with "
                "weight decay does"
            )
        if (ratio := self._unexplained) is not None and ratio > _FOREIGN:
            raise NotMeasured(
                f"uploads have {number(ratio)} times the energy of the noise that is claimed: the "
                "model moves between the audit's start and end by more than its steps; it must be "
                "loaded before the audit starts, and sent as it then is"
            )

    def server(self, line: SiloLine) -> SiloLine:
        """Of who sees each upload."""
        law = self._law(range(len(self.memory.told.uploads)))
        record = self.memory.record(averages=False, **self._values(law))
        units = np.array([upload.unit for upload in self.memory.told.uploads])
        variances = np.array([upload.variance for upload in self.memory.told.uploads])
        doubts = []
        if (ratio := self._unexplained) is not None and ratio > 1:
            doubts.append(
                f"uploads have {number(ratio)} times the energy of the noise that is claimed: "
                "something besides the steps moves the model, and hides records"
            )
        return self._measured(
            line, record, _SECRET, self._limit(law, units, variances), doubts
        )

    def outsider(self, line: SiloLine) -> SiloLine:
        """Of who sees each average."""
        return self._of_averages(line, np.ones(len(self._shares)), [])

    def partner(self, line: SiloLine) -> SiloLine:
        """Of a silo that subtracts its own upload, and those of its allies."""
        plan, facts = self.memory.plan, self.facts
        silos = (facts and facts.silos) or plan.silos
        if silos is None:
            raise NotMeasured("how many silos there are is not known (silos=…)")
        if silos < 2:
            raise NotMeasured("there is no other silo")
        doubts = []
        allies = 1 if facts is None else facts.allies
        shares = self._shares
        if facts is not None and facts.others:
            taken = iter(facts.others)
            left = np.array([next(taken, 0.0) if share else 1.0 for share in shares])
        elif allies >= silos - 1:
            left = np.zeros(len(shares))
        elif plan.silos is not None:
            left = np.full(len(shares), (silos - 1 - allies) / (silos - 1))
            doubts.append("the other silos are taken to add as much to an average each")
        else:
            raise NotMeasured(
                "how much each of the other silos adds to an average is not known (silos=… takes "
                "them to be alike)"
            )
        return self._of_averages(line, left, doubts)

    def public(self, line: SiloLine) -> SiloLine:
        """Of who has the last model."""
        self._check_server()
        if self.facts is None:
            raise NotMeasured("the silo has not seen the last model")
        if self.memory.told.rewound:
            raise NotMeasured("the server went back to an earlier model during the run")
        adversary = dataclasses.replace(_SECRET, sees="final")
        limit = self._limit_of_last_model()
        return self._measured(line, self._averages.record, adversary, limit, [])

    def _check_server(self) -> None:
        plan, told, facts = self.memory.plan, self.memory.told, self.facts
        if facts is not None:
            known = plan.server
            if facts.server != "sgd":
                raise NotMeasured(
                    f"the server moves the model by {facts.server}, not by averages"
                )
            if (facts.learning_rate, facts.momentum) != (
                known.learning_rate,
                known.momentum,
            ):
                raise NotMeasured(
                    f"the server has learning rate {facts.learning_rate:g} and momentum "
                    f"{facts.momentum:g}, which the silo was not told (server=…)"
                )
        if told.momentum:
            raise NotMeasured(
                "averages hold more of earlier uploads than the silo was told, as by a server with "
                "momentum (server=…)"
            )
        if not any(self._shares):
            raise NotMeasured("no upload of the silo is seen in an average")

    @property
    def _shares(self) -> list[float]:
        return [average.share for average in self.memory.told.averages]

    def _of_averages(self, line: SiloLine, left: Floats, doubts: list[str]) -> SiloLine:
        """Of who sees averages in which this share of the other silos' energy is left, ``(T,)``."""
        self._check_server()
        rounds = self._rounds_of_averages()
        left = left / rounds
        if np.any(rounds > 1):
            doubts.append(
                f"{counted(int(np.sum(rounds > 1)), 'average')} could be seen only together with "
                "those of rounds without this silo, which are taken to be alike"
            )
        if self.facts is None:
            doubts.append(
                "the silo is taken to be in every round, and the last average is missing"
            )
        seen = self._averages
        record = seen.in_residual(left) if np.any(left < 1) else seen.record
        variances = seen.variances + left * seen.rest / self.memory.plan.dim
        limit = self._limit(self._law_of_averages(), seen.units, variances)
        return self._measured(line, record, _SECRET, limit, doubts)

    @functools.cached_property
    def _averages(self) -> _Averages:
        """What all adversaries but the server have in common."""
        memory = self.memory
        record = memory.record(averages=True, **self._values(self._law_of_averages()))
        shares = np.array(self._shares)
        which = [average.upload for average in memory.told.averages]
        owners = [memory.told.uploads[i] for i in which]
        energies = shares**2 * np.array([upload.energy for upload in owners])
        return _Averages(
            record=record,
            own=np.sqrt(energies),
            rest=np.maximum(record.norms.means**2 - energies, 0.0),
            dots=shares[:, None] * memory.uploads.state()["dots.mean"][which],
            units=shares * np.array([upload.unit for upload in owners]),
            variances=shares**2 * np.array([upload.variance for upload in owners]),
        )

    def _rounds_of_averages(self) -> np.ndarray:
        """How many rounds of the federation each average of the silo is over, ``(T,)``."""
        facts, shares = self.facts, np.array(self._shares)
        found = np.ones(len(shares))
        if facts is None:
            return found
        here = np.flatnonzero(shares)
        if len(here) != len(facts.taken):
            raise NotMeasured(
                f"{counted(len(facts.taken), 'upload')} arrived, and the silo sees "
                f"{len(here)} of them in averages"
            )
        found[here] = np.diff([*facts.taken, facts.rounds + 1])
        return found

    def _law(self, uploads: Any) -> ParticipationLaw:
        """Of a record in releases of these uploads; −1 stands for a release without one."""
        known = self.memory.told.uploads
        weights = [
            np.array(known[i].weights) if i >= 0 else np.empty(0) for i in uploads
        ]
        rates = [known[i].rate if i >= 0 else 1.0 for i in uploads]
        return ParticipationLaw.of_records(weights, rates, self.memory.plan.records)

    def _law_of_averages(self) -> ParticipationLaw:
        averages = self.memory.told.averages
        return self._law([a.upload if a.share else -1 for a in averages])

    def _values(self, law: ParticipationLaw) -> dict[str, Any]:
        return {
            "participation": law,
            "noise_multiplier": self.noise,
            "sum_noise_multiplier": self.noise,
            "num_canaries": self.memory.plan.num_canaries,
        }

    def _limit(self, law: ParticipationLaw, units: Floats, variances: Floats) -> float:
        """ε of what a record adds once to each release, and the noise in a coordinate."""
        if not np.all(variances > 0):
            return math.inf
        return epsilon_of_signals(
            units / np.sqrt(variances), self.memory.plan.delta, law.events
        )

    def _limit_of_last_model(self) -> float | None:
        told, plan, seen = self.memory.told, self.memory.plan, self._averages
        shares = np.array(self._shares)
        here = np.flatnonzero(shares)
        owners = [told.uploads[told.averages[i].upload] for i in here]
        units = seen.units[here]
        if np.ptp(shares[here]) < _ALIKE * shares[here].mean():
            units = shares[here].mean() / shares[here] * units
        weights = [
            unit * np.array(u.weights) for unit, u in zip(units, owners, strict=True)
        ]
        whole = np.concatenate(weights)
        variance = float(np.sum(seen.variances[here] + seen.rest[here] / plan.dim))
        rate = max(upload.rate for upload in owners)
        law = ParticipationLaw.of_records([whole / whole.mean()], [rate], plan.records)
        return self._limit(law, whole.mean(keepdims=True), np.array([variance]))

    def _measured(
        self,
        line: SiloLine,
        record: AuditRecord,
        adversary: Adversary,
        limit: float | None,
        doubts: list[str],
    ) -> SiloLine:
        found = answer(record, adversary, confidence=CONFIDENCE)
        line = dataclasses.replace(
            line,
            linear_limit=limit,
            releases=1 if adversary.sees == "final" else record.rounds,
            doubts=tuple(doubts),
        )
        if found.estimate is None:
            return dataclasses.replace(line, reason=found.reason)
        proved = found.proved
        if (
            line.theory is not None and (proved or 0.0) > line.theory
        ):  # by chance in 5% of lines
            proved = answer(record, adversary, confidence=_ACCUSING).proved
        if found.contradicted:
            doubts.append(
                "what is proved is above the interval, which is not to be trusted"
            )
        return dataclasses.replace(
            line,
            epsilon=found.estimate.epsilon,
            low=found.estimate.low,
            high=found.estimate.high,
            scale=None if found.fit is None else found.fit.scale,
            proved=proved or None,
            doubts=tuple(doubts),
        )

    def shared_records(self) -> dict[str, str]:
        """The record of the averages, as a file in base64, without the seed of the canaries."""
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


_READERS: dict[SiloAdversary, Any] = {
    "server": _Silo.server,
    "partner": _Silo.partner,
    "outsider": _Silo.outsider,
    "public": _Silo.public,
}
