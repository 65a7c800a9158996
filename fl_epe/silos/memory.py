"""`SiloMemory`: what a silo remembers of its audit from round to round.

It holds scores, some vectors as large as the model, and the seed of the canaries. It never leaves
the silo.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Self

import numpy as np

from fl_epe.archive import digest, packed_json, put_under, under, unpacked_json
from fl_epe.auditing import AuditRecord, RoundCorrelation, RoundFacts, RunAuditor
from fl_epe.checks import Floats, NamedArrays, Vector
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.silos.upload import Upload
from fl_epe.wording import unit_of_records

_COMPARED = 1 << 16  # entries of an upload by which it is found in an average
_SURE = 5.0  # standard errors of an upload's share of an average
_LAGGED = 6.0  # and of that of the upload before


@dataclasses.dataclass(frozen=True)
class SiloPlan:
    """What was decided before the first round; `audit_records` explains the names.

    Attributes:
        too_small: why no canary joins; empty if they do.
    """

    dim: int
    delta: float
    seed: int
    num_canaries: int
    unobserved: int
    rate: float
    records: int
    server: ServerSGD
    batch: float
    silo: str
    silos: int | None
    share_scores: bool
    share_design: bool
    too_small: str

    @property
    def unit(self) -> str:
        """Whose privacy, in words."""
        return unit_of_records(self.records)


@dataclasses.dataclass
class UploadFacts:
    """Of a round's upload: see `Upload` for the names.

    Attributes:
        energy: ``‖hidden‖²``.
        canaries: that of the canaries' part, as far as their directions are orthogonal.
    """

    unit: float
    weights: list[float]
    rate: float
    variance: float
    energy: float
    canaries: float


@dataclasses.dataclass
class AverageFacts:
    """Of the difference of two models that the silo was sent, one after the other.

    Attributes:
        upload: index of the silo's last upload before it.
        share: how much of that upload is in it; 0 if none of it can be seen there.
    """

    upload: int
    share: float


@dataclasses.dataclass
class Told:
    """What else is remembered, as JSON.

    Attributes:
        trained: of each round in which DP-SGD trained the number of steps, their sampling rate and
            the least noise multiplier.
        accounted: steps that the silo's accountant counts; ``None`` if there is none.
        uploads: of the rounds that are scored.
        averages: that the silo saw.
        received: hashes of the models that it was sent, and how many averages there were then.
        reasons: why uploads are not scored, with their number of rounds.
        not_private: what trained in rounds without DP-SGD, and in how many.
        rewound: whether the server went back to an earlier model than the last.
        momentum: whether averages hold earlier uploads, beyond what the server was said to do.
        names: of the arrays of an upload, in the model's order; empty if they are not known.
        unsent: why what was sent is not the model that was trained; empty if it is.
        stood_back: what ended the audit of a round.
    """

    trained: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)
    accounted: int | None = None
    uploads: list[UploadFacts] = dataclasses.field(default_factory=list)
    averages: list[AverageFacts] = dataclasses.field(default_factory=list)
    received: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    not_private: dict[str, int] = dataclasses.field(default_factory=dict)
    rewound: bool = False
    momentum: bool = False
    names: list[str] = dataclasses.field(default_factory=list)
    unsent: str = ""
    stood_back: list[str] = dataclasses.field(default_factory=list)

    @property
    def with_steps(self) -> list[tuple[int, float, float]]:
        """``trained``, without rounds that had no step."""
        return [one for one in self.trained if one[0]]

    def state(self) -> NamedArrays:
        """A named array, from which `of_state` goes on."""
        return {"told": packed_json(dataclasses.asdict(self))}

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """From what `state` returned, among other arrays."""
        values = unpacked_json(state["told"])
        values["uploads"] = [UploadFacts(**each) for each in values["uploads"]]
        values["averages"] = [AverageFacts(**each) for each in values["averages"]]
        for name in ("received", "trained"):
            values[name] = [tuple(each) for each in values[name]]
        return cls(**values)


class SiloMemory:
    """What is known of a silo's rounds so far.

    Args:
        plan: what was decided before the first of them.
        state: what `state` returned after some; none by default.

    Attributes:
        told: facts of the rounds.
        uploads: scores of the canaries with each upload.
        averages: with each average.
        steps: what `SeenSteps` has seen; ``None`` before the first round.
    """

    def __init__(self, plan: SiloPlan, state: NamedArrays | None = None) -> None:
        self.plan, state = plan, state or {}
        self.told = Told.of_state(state) if state else Told()
        # The noise of steps is fresh in each upload; averages have drift, which is not.
        uploads = under(state, "uploads."), len(self.told.uploads)
        self.uploads = _auditor(
            plan, *uploads, server="an average of uploads", window=1
        )
        averages = under(state, "averages."), len(self.told.averages)
        self.averages = _auditor(plan, *averages, server=plan.server)
        self.steps = under(state, "steps.") or None
        self._vectors = under(state, "vectors.") or _no_vectors(plan)

    def receive(self, model: Vector) -> None:
        """Take in a model that the silo was sent, ``(dim,)``: it shows the average before it."""
        told, vectors = self.told, self._vectors
        mark = digest(model)
        known = [i for i, (other, _) in enumerate(told.received) if other == mark]
        if not told.received:
            vectors["first"] = model
        elif known:
            self._go_back(known[-1])
        else:
            self._average(model - vectors["last"])
        if not known:
            told.received.append((mark, len(told.averages)))
        vectors["last"] = model
        vectors["real"] = np.zeros_like(vectors["real"])
        vectors["hidden before"], vectors["hidden"] = (
            vectors["hidden"],
            vectors["hidden"][:0],
        )

    def _go_back(self, index: int) -> None:
        """The server goes on from an earlier model: what came after it is in none that follows."""
        told = self.told
        del told.received[index + 1 :]
        told.rewound = told.rewound or len(told.averages) > told.received[-1][1]

    def _average(self, difference: Vector) -> None:
        told, vectors, server = self.told, self._vectors, self.plan.server
        rate, momentum = np.float32(server.learning_rate), np.float32(server.momentum)
        mean = np.asarray(difference / rate)
        if momentum:
            vectors["velocity"], mean = server.undo(vectors["velocity"], difference)
        share = self._share(mean)
        removed: Vector = np.float32(share) * vectors["real"]
        facts = RoundFacts((), 0.0)
        if share:
            times = vectors["times"]
            present = np.flatnonzero(times).tolist()
            unit = share * told.uploads[-1].unit
            facts = RoundFacts(present, unit, weights=times[present].tolist())
        self.averages.observe(None, facts, released={"mean": mean - removed})
        told.averages.append(AverageFacts(len(told.uploads) - 1, share))
        if momentum:
            removed = removed + momentum * vectors["removed velocity"]
            vectors["removed velocity"] = removed
        vectors["removed"] = vectors["removed"] + rate * removed

    def _share(self, mean: Vector) -> float:
        """How much of the last upload is in an average: by regression on its noise."""
        here = mean[self._compared]
        share, error = _slope(here, self._vectors["hidden"])
        lagged, its_error = _slope(here, self._vectors["hidden before"])
        self.told.momentum = self.told.momentum or abs(lagged) > _LAGGED * its_error
        return share if share > _SURE * error else 0.0

    @property
    def last(self) -> Vector:
        """The last model that the silo was sent, ``(dim,)``."""
        return self._vectors["last"]

    @property
    def rounds(self) -> int:
        """Rounds in which the silo trained."""
        return len(self.told.trained) + sum(self.told.not_private.values())

    @functools.cached_property
    def _compared(self) -> np.ndarray:
        dim = self.plan.dim
        return np.unique(np.linspace(0, dim - 1, min(dim, _COMPARED)).astype(np.int64))

    def note_upload(self, upload: Upload) -> None:
        """Score the canaries against an upload."""
        told, vectors = self.told, self._vectors
        present = np.flatnonzero(upload.times).tolist()
        facts = RoundFacts(present, upload.unit, weights=upload.times[present].tolist())
        self.uploads.observe(None, facts, released={"mean": upload.hidden})
        told.uploads.append(
            UploadFacts(
                unit=upload.unit,
                weights=upload.weights.tolist(),
                rate=upload.rate,
                variance=upload.variance,
                energy=norm(upload.hidden) ** 2,
                canaries=upload.unit**2 * float(upload.times @ upload.times),
            )
        )
        vectors["real"], vectors["times"] = upload.real, upload.times
        vectors["hidden"] = upload.hidden[self._compared]

    def final(self) -> Vector:
        """The last model that the silo was sent less the first one and the silo's own records."""
        vectors = self._vectors
        return np.asarray(vectors["last"] - vectors["first"] - vectors["removed"])

    def record(self, *, averages: bool, **facts: Any) -> AuditRecord:
        """The record of the averages, or of the uploads."""
        if averages:
            return self.averages.record(final=self.final(), **facts)
        record = self.uploads.record(**facts)
        fresh = RoundCorrelation(np.ones((record.rounds, 1)))  # the noise of steps
        return dataclasses.replace(record, correlation=fresh)

    def state(self) -> NamedArrays:
        """Named arrays, from which `of_state` goes on."""
        packed = {
            "plan": packed_json(dataclasses.asdict(self.plan)),
            **self.told.state(),
        }
        parts = {
            "uploads.": self.uploads.state(),
            "averages.": self.averages.state(),
            "vectors.": self._vectors,
            "steps.": self.steps or {},
        }
        named = (put_under(prefix, arrays) for prefix, arrays in parts.items())
        return packed | {
            name: array for arrays in named for name, array in arrays.items()
        }

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """From what `state` returned.

        Raises:
            Exception: of any kind, if it is something else.
        """
        values = unpacked_json(state["plan"])
        return cls(
            SiloPlan(**(values | {"server": ServerSGD(**values["server"])})), state
        )


def _no_vectors(plan: SiloPlan) -> NamedArrays:
    nothing = np.zeros(plan.dim, np.float32)
    names = ["first", "last", "real", "removed"]
    names += ["velocity", "removed velocity"] if plan.server.momentum else []
    return {
        **dict.fromkeys(names, nothing),
        "hidden": nothing[:0],  # some entries of the last upload
        "hidden before": nothing[:0],  # and of that before it
        "times": np.zeros(plan.num_canaries),  # how often canaries are in it
    }


def _auditor(
    plan: SiloPlan, kept: NamedArrays, rounds: int, **options: Any
) -> RunAuditor:
    """Of some rounds, whose state is ``kept``."""
    auditor = RunAuditor(
        plan.num_canaries,
        plan.unobserved,
        seed=plan.seed,
        delta=plan.delta,
        series=("mean",),
        **options,
    )
    nothing = np.zeros(plan.dim)
    if kept:
        auditor.restore(kept, rounds, start=nothing, last=nothing)
    else:
        auditor.begin(nothing)
    return auditor


def _slope(values: Floats, along: Floats) -> tuple[float, float]:
    """Of a regression through the origin, with its standard error; 0 without anything to go by."""
    square = float(np.dot(along, along)) if len(along) else 0.0
    if not square > 0:
        return 0.0, math.inf
    slope = float(np.dot(values, along)) / square
    rest = norm(values - np.float32(slope) * along)
    return slope, rest / math.sqrt(len(along) * square)
