"""`SiloMemory`: the data that a silo stores between the rounds of its audit.

It consists of scores, some vectors as large as the model, and the seed of the canaries. It
never leaves the silo.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Self

import numpy as np

from fl_epe.archive import (
    add_prefix,
    digest,
    packed_json,
    select_prefix,
    unpacked_json,
)
from fl_epe.auditing import (
    AuditRecord,
    RoundCorrelation,
    RoundFacts,
    RunAuditor,
)
from fl_epe.checks import Floats, NamedArrays, Vector
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.schedules import ParticipationLaw
from fl_epe.silos.upload import Upload

# Largest number of stored entries of an upload, by which it is detected in an average.
_MAX_COMPARED = 1 << 16
# An upload is in an average if its share exceeds this number of standard errors.
_STANDARD_ERRORS = 5.0
# The upload before that one is in the average, too, if its share exceeds this number of standard
# errors. The number is larger, as one false alarm ends the measurements with averages.
_STANDARD_ERRORS_OF_EARLIER = 6.0


@dataclasses.dataclass(frozen=True)
class SiloPlan:
    """The settings of an audit, fixed before the first round and named as in `audit_records`.

    Attributes:
        too_small: why no canary joins; empty if canaries join.
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


class RoundSteps(NamedTuple):
    """The steps of DP-SGD of a round.

    Attributes:
        num_steps: number of steps.
        sampling_rate: their largest sampling rate.
        noise_multiplier: their smallest noise multiplier.
    """

    num_steps: int
    sampling_rate: float
    noise_multiplier: float


@dataclasses.dataclass
class UploadFacts:
    """Numbers about a round's upload; see `Upload` for further names.

    Attributes:
        energy: ``‖hidden‖²``.
        canaries: energy of the canaries' part if their directions were orthogonal.
    """

    unit: float
    weights: list[float]
    rate: float
    variance: float
    energy: float
    canaries: float


@dataclasses.dataclass
class AverageFacts:
    """Numbers about an average: the difference of two successive models that the silo received.

    Attributes:
        upload: index of the silo's last upload before the average.
        share: share of that upload in the average; 0 if it is not detected there.
    """

    upload: int
    share: float


@dataclasses.dataclass
class SiloHistory:
    """Facts of the rounds, which are stored as JSON.

    Attributes:
        trained: the steps of each round of DP-SGD.
        accounted: number of steps in the silo's accountant; ``None`` without an accountant.
        uploads: facts about the uploads that are scored.
        averages: facts about the averages that the silo received.
        received: the hash of each model that the silo received, and the number of averages
            then.
        reasons: reasons why uploads are not scored, with the number of rounds.
        not_private: names of optimizers without DP-SGD, with the number of rounds.
        rewound: whether the server went back from the last model to an earlier one.
        momentum: whether averages have more of earlier uploads than the announced server adds.
        names: names of the arrays of an upload, in the model's order; empty if they are not
            known.
        unsent: why the sent arrays are not the trained model; empty if they are.
        stood_back: errors that ended the audit of a round.
    """

    trained: list[RoundSteps] = dataclasses.field(default_factory=list)
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
    def rounds_with_steps(self) -> list[RoundSteps]:
        """``trained``, without rounds that had no step."""
        return [steps for steps in self.trained if steps.num_steps]

    @property
    def num_steps(self) -> int:
        """Number of steps of DP-SGD in all rounds."""
        return sum(steps.num_steps for steps in self.trained)

    @property
    def noise_multiplier(self) -> float:
        """Smallest noise multiplier of a step; 0 without a step."""
        return min(
            (steps.noise_multiplier for steps in self.rounds_with_steps),
            default=0.0,
        )

    def state(self) -> NamedArrays:
        """The history as a named array, for `of_state`."""
        return {"told": packed_json(dataclasses.asdict(self))}

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """The history in a `state`, which may have other arrays, too."""
        values = unpacked_json(state["told"])
        values["uploads"] = [
            UploadFacts(**facts) for facts in values["uploads"]
        ]
        values["averages"] = [
            AverageFacts(**facts) for facts in values["averages"]
        ]
        values["trained"] = [RoundSteps(*steps) for steps in values["trained"]]
        values["received"] = [tuple(pair) for pair in values["received"]]
        return cls(**values)


class SiloMemory:
    """The stored data about a silo's rounds so far.

    Args:
        plan: the settings, fixed before the first round.
        state: the `state` after some rounds; none by default.

    Attributes:
        plan: the settings.
        history: facts about the rounds.
        uploads: scores of the canaries with each upload.
        averages: scores of the canaries with each average.
        steps: state of `SeenSteps`; ``None`` before the first round.
    """

    def __init__(
        self, plan: SiloPlan, state: NamedArrays | None = None
    ) -> None:
        state = state or {}
        self.plan = plan
        self.history = SiloHistory.of_state(state) if state else SiloHistory()
        # The noise of uploads is independent, so there is nothing to whiten. In averages, the
        # drift of the model is correlated.
        self.uploads = _auditor(
            plan,
            select_prefix(state, "uploads."),
            len(self.history.uploads),
            server="an average of uploads",
            window=1,
        )
        self.averages = _auditor(
            plan,
            select_prefix(state, "averages."),
            len(self.history.averages),
            server=plan.server,
        )
        self.steps = select_prefix(state, "steps.") or None
        self._vectors = select_prefix(state, "vectors.") or _initial_vectors(
            plan
        )

    def receive(self, model: Vector) -> None:
        """Note a model that the silo received, ``(dim,)``, and the average that led to it."""
        history = self.history
        vectors = self._vectors
        model_hash = digest(model)
        received_hashes = [earlier_hash for earlier_hash, _ in history.received]
        is_new = model_hash not in received_hashes
        if not received_hashes:
            vectors["first"] = model
        elif is_new:
            self._note_average(model - vectors["last"])
        else:
            # The server goes on from an earlier model and discards those after it.
            del history.received[received_hashes.index(model_hash) + 1 :]
            _, averages_before = history.received[-1]
            if len(history.averages) > averages_before:
                history.rewound = True
        if is_new:
            history.received.append((model_hash, len(history.averages)))
        vectors["last"] = model
        vectors["real"] = np.zeros_like(vectors["real"])
        vectors["hidden before"] = vectors["hidden"]
        vectors["hidden"] = vectors["hidden"][:0]

    def _note_average(self, difference: Vector) -> None:
        """Score the canaries against the average in the difference of two received models."""
        history = self.history
        vectors = self._vectors
        server = self.plan.server
        rate = np.float32(server.learning_rate)
        momentum = np.float32(server.momentum)
        if momentum:
            vectors["velocity"], mean = server.undo(
                vectors["velocity"], difference
            )
        else:
            mean = np.asarray(difference / rate)
        # An upload is detected in an average by its noise.
        entries = mean[self._compared]
        if _significant_slope(
            entries, vectors["hidden before"], _STANDARD_ERRORS_OF_EARLIER
        ):
            history.momentum = True
        slope = _significant_slope(entries, vectors["hidden"], _STANDARD_ERRORS)
        share = max(slope, 0.0)
        removed: Vector = np.float32(share) * vectors["real"]
        facts = RoundFacts((), 0.0)
        if share:
            facts = _round_facts(
                share * history.uploads[-1].unit, vectors["times"]
            )
        self.averages.observe(None, facts, released={"mean": mean - removed})
        history.averages.append(AverageFacts(len(history.uploads) - 1, share))
        if momentum:
            removed = removed + momentum * vectors["removed velocity"]
            vectors["removed velocity"] = removed
        vectors["removed"] = vectors["removed"] + rate * removed

    @property
    def last(self) -> Vector:
        """The last model that the silo received, ``(dim,)``."""
        return self._vectors["last"]

    @property
    def rounds(self) -> int:
        """Number of rounds in which the silo trained."""
        return len(self.history.trained) + sum(
            self.history.not_private.values()
        )

    @functools.cached_property
    def _compared(self) -> np.ndarray:
        """The indices of the entries by which an upload is detected in an average."""
        dim = self.plan.dim
        indices = np.linspace(0, dim - 1, min(dim, _MAX_COMPARED))
        return np.unique(indices.astype(np.int64))

    def note_upload(self, upload: Upload) -> None:
        """Score the canaries against an upload."""
        vectors = self._vectors
        facts = _round_facts(upload.unit, upload.times)
        self.uploads.observe(None, facts, released={"mean": upload.hidden})
        self.history.uploads.append(
            UploadFacts(
                unit=upload.unit,
                weights=upload.weights.tolist(),
                rate=upload.rate,
                variance=upload.variance,
                energy=norm(upload.hidden) ** 2,
                canaries=upload.unit**2 * float(upload.times @ upload.times),
            )
        )
        vectors["real"] = upload.real
        vectors["times"] = upload.times
        vectors["hidden"] = upload.hidden[self._compared]

    def record_of_uploads(self, law: ParticipationLaw) -> AuditRecord:
        """The record of the uploads, for the participation law of a silo's record in them."""
        record = self._record(self.uploads, law)
        # The noise of the steps is independent in each upload.
        uncorrelated = RoundCorrelation(np.ones((record.rounds, 1)))
        return dataclasses.replace(record, correlation=uncorrelated)

    def record_of_averages(self, law: ParticipationLaw) -> AuditRecord:
        """The record of the averages, for the participation law of a silo's record in them."""
        vectors = self._vectors
        # The change of the model without the updates from the silo's own records.
        final = vectors["last"] - vectors["first"] - vectors["removed"]
        return self._record(self.averages, law, np.asarray(final))

    def _record(
        self,
        auditor: RunAuditor,
        law: ParticipationLaw,
        final: Vector | None = None,
    ) -> AuditRecord:
        noise_multiplier = self.history.noise_multiplier
        return auditor.record(
            final=final,
            participation=law,
            noise_multiplier=noise_multiplier,
            sum_noise_multiplier=noise_multiplier,
            num_canaries=self.plan.num_canaries,
        )

    def state(self) -> NamedArrays:
        """The memory as named arrays, for `of_state`."""
        return {
            "plan": packed_json(dataclasses.asdict(self.plan)),
            **self.history.state(),
            **add_prefix(self.uploads.state(), "uploads."),
            **add_prefix(self.averages.state(), "averages."),
            **add_prefix(self._vectors, "vectors."),
            **add_prefix(self.steps or {}, "steps."),
        }

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """The memory in a `state`.

        Raises:
            Exception: of any kind, if the arrays are not those of a memory.
        """
        values = unpacked_json(state["plan"])
        values["server"] = ServerSGD(**values["server"])
        return cls(SiloPlan(**values), state)


def _round_facts(unit: float, times: Floats) -> RoundFacts:
    """The facts of a release in which canary i is added ``times[i]`` times ``unit``."""
    present = np.flatnonzero(times).tolist()
    return RoundFacts(present, unit, weights=times[present].tolist())


def _initial_vectors(plan: SiloPlan) -> NamedArrays:
    """The vectors of a memory before the first round.

    "first" and "last" are the models that the silo received, and "real" is `Upload.real` of the
    last upload. "removed" is the part of the model that is due to the silo's own records, and
    "removed velocity" that part of the server's "velocity".
    """
    zeros = np.zeros(plan.dim, np.float32)
    names = ["first", "last", "real", "removed"]
    if plan.server.momentum:
        names += ["velocity", "removed velocity"]
    return {
        **dict.fromkeys(names, zeros),
        # Some entries of `Upload.hidden` of the last upload, and of the upload before it.
        "hidden": zeros[:0],
        "hidden before": zeros[:0],
        # `Upload.times` of the last upload.
        "times": np.zeros(plan.num_canaries),
    }


def _auditor(
    plan: SiloPlan, state: NamedArrays, rounds: int, **options: Any
) -> RunAuditor:
    """An auditor, restored from its state after ``rounds`` rounds if there is one."""
    auditor = RunAuditor(
        plan.num_canaries,
        plan.unobserved,
        seed=plan.seed,
        delta=plan.delta,
        series=("mean",),
        **options,
    )
    zeros = np.zeros(plan.dim)
    if state:
        auditor.restore(state, rounds, start=zeros, last=zeros)
    else:
        auditor.begin(zeros)
    return auditor


def _significant_slope(
    values: Floats, regressor: Floats, standard_errors: float
) -> float:
    """Slope of a regression through the origin; 0 within this number of standard errors of 0.

    It is also 0 if the regressor is 0, or empty.
    """
    square = float(np.dot(regressor, regressor))
    if not square > 0:
        return 0.0
    slope = float(np.dot(values, regressor)) / square
    residual = norm(values - np.float32(slope) * regressor)
    error = residual / math.sqrt(len(regressor) * square)
    if abs(slope) > standard_errors * error:
        return slope
    return 0.0
