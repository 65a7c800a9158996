"""The parts of an `AuditRecord`, each a small frozen dataclass.

In shapes T is the number of rounds, and k is the number of observed canaries. In `CanaryCosines`, k
is the number of canaries of its group, which is either the observed or the unobserved ones.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np

from fl_epe.auditing.estimate import EpsilonEstimate
from fl_epe.canaries import CanaryKind
from fl_epe.checks import Floats, Integers
from fl_epe.schedules import ParticipationLaw


@dataclasses.dataclass(frozen=True, eq=False)
class CanaryCosines:
    """Cosines of one group of canaries with every vector that an adversary sees, in [-1, 1].

    Attributes:
        means: ``(T, k)``, with the released mean of each round, without the server's momentum.
        final: ``(k,)``, with the final model θ_T.
        displacement: ``(k,)``, with θ_T − θ_0.
        model_updates: ``(T, k)``, with the model updates θ_t − θ_{t−1}, if they do not follow from
            the means (an optimizer that is not linear).
        residuals: ``(T, k)``, with the released mean without the real clients' part, if that is
            known.
        canary_sums: ``(T, k)``, with the weighted sum of the directions of the round's canaries.
            It is 0 where it is not computed: in rounds whose ``Norms.canary_sums`` is 0, and for
            observed canaries that are absent from the round, if they are costly to regenerate.
        canary_displacement: ``(k,)``, with the canaries' expected contribution to θ_T − θ_0.
        ids: ``(k,)``, indices of the canaries in their `CanarySet`.
    """

    means: Floats
    final: Floats
    displacement: Floats
    model_updates: Floats | None = None
    residuals: Floats | None = None
    canary_sums: Floats | None = None
    canary_displacement: Floats | None = None
    ids: Integers | None = None

    @property
    def count(self) -> int:
        """Number of canaries k."""
        return int(self.means.shape[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Norms:
    """Norms of the vectors of `CanaryCosines`.

    Attributes:
        means: ``(T,)``, of the released means.
        model_updates: ``(T,)``, of the model updates.
        final: norm of the final model.
        displacement: norm of θ_T − θ_0.
        residuals: ``(T,)``, of the released means without the real clients' part.
        canary_sums: ``(T,)``, of the weighted sum of the directions of each round's canaries; 0 in
            rounds in which it is negligible in the mean, so that it is not projected out.
        canary_displacement: norm of the canaries' expected contribution to θ_T − θ_0; 0 if it is
            too small to affect scores.
    """

    means: Floats
    model_updates: Floats
    final: float
    displacement: float
    residuals: Floats | None = None
    canary_sums: Floats | None = None
    canary_displacement: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ServerStep:
    """How the server turns the released means into models.

    Attributes:
        name: name of the optimizer. Only with "sgd" the model is a weighted sum of the means.
        learning_rates: ``(T,)``, step size of every round; ``None`` if it is not known.
        momentum: momentum of SGD.
    """

    name: str
    learning_rates: Floats | None = None
    momentum: float = 0.0

    @property
    def is_linear(self) -> bool:
        """Whether the final model is a weighted sum of the means, as it is with SGD.

        The weights are known if ``learning_rates`` are.
        """
        return self.name == "sgd"


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """How updates become a model: participation, clipping, noise, and the server's step.

    Attributes:
        cohort_size: expected cohort size n, the denominator of the mean; in a deployment the mean
            number of replies, canaries included.
        noise_multiplier: z of a round's whole release: the sum of updates, and the noisy count of
            an adaptive clip norm; ``None`` if unknown.
        sum_noise_multiplier: z of the sum of updates alone; ``None`` if unknown.
        participation: the law of a client's participations. If its rounds are secret, canaries
            follow the same law.
        canary_participations: expected number of participations of an observed canary.
        server: how the means become models.
        clip_norms: ``(T,)``; NaN in rounds without clipping.
        contributions: ``(T,)``, norm of the contribution of a client of median weight to the
            released mean, whether or not a canary took part in that round; NaN where it is not
            known. By default it is ``clip_norms / cohort_size``.
        inclusion: "coin" if an independent fair coin decided whether a canary took part; otherwise
            "fixed".
        canary_weights: ``(T, k)``, the contribution of each observed canary, divided by
            `contribution_norms` of the round; ``None`` if all are 1.
        strategy: ``(T, T)``, lower triangular strategy matrix C of correlated noise: the noise of
            the rounds is ``C⁻¹Z``; ``None`` for independent noise.
        noise_cohort_size: the cohort size for which the noise was calibrated; ``None`` if it is
            ``cohort_size``.
    """

    cohort_size: float
    noise_multiplier: float | None
    sum_noise_multiplier: float | None
    participation: ParticipationLaw
    canary_participations: float
    server: ServerStep
    clip_norms: Floats
    contributions: Floats | None = None
    inclusion: Literal["fixed", "coin"] = "fixed"
    canary_weights: Floats | None = None
    strategy: Floats | None = None
    noise_cohort_size: float | None = None

    @property
    def contribution_norms(self) -> Floats:
        """``contributions``, or their default if they are ``None``, ``(T,)``."""
        if self.contributions is None:
            return self.clip_norms / self.cohort_size
        return self.contributions


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """The settings that were fixed before the run; ``None`` if one is not known.

    Attributes:
        task: name of the task that was trained.
        num_clients: number of real clients.
        num_rounds: planned number of rounds; a run may stop early.
        clients_per_round: expected number of real clients in a round.
        schedule: participation schedule of clients and canaries, with its options.
        num_canaries: number of canaries that may take part, some of which may be drawn for no
            round.
        canaries_vote: whether canaries vote on an adaptive clip norm.
        stop_when: the rule for an early stop.
        also_known: further knowledge of an adversary who sees every round's model, in words.
        metric: name of the task's metric, such as "accuracy" or "r2"; its values are stored as
            "eval_accuracy", whatever the metric.
        chance_accuracy: accuracy of the best constant prediction.
        chance_loss: loss of the best constant prediction.
        canaries_come_from: who adds the canaries in a deployment, "server" or "clients".
        caveat: what the analytical guarantee does not cover, in words.
        settings: all other settings by name, which reports show.
    """

    task: str | None = None
    num_clients: int | None = None
    num_rounds: int | None = None
    clients_per_round: float | None = None
    schedule: str | None = None
    num_canaries: int | None = None
    canaries_vote: bool = False
    stop_when: str | None = None
    also_known: str | None = None
    metric: str = "accuracy"
    chance_accuracy: float | None = None
    chance_loss: float | None = None
    canaries_come_from: str | None = None
    caveat: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Builds a design from the settings of a run, under the names of `RunConfig`.

        Settings that are no fields go to ``settings``.
        """
        names = {field.name for field in dataclasses.fields(cls)} - {"settings"}
        values = {}
        further = {}
        for setting, value in settings.items():
            name = _FIELD_NAMES.get(setting, setting)
            if name in names:
                values[name] = value
            else:
                further[name] = value
        return cls(**values, settings=further)

    def to_settings(self) -> dict[str, Any]:
        """The inverse of `of`; fields that are ``None`` are left out."""
        setting_names = {field: name for name, field in _FIELD_NAMES.items()}
        settings = {
            setting_names.get(field, field): value
            for field, value in vars(self).items()
            if value is not None
        }
        further: dict[str, Any] = settings.pop("settings")
        return settings | further


# The names of settings and of their fields, where they differ.
_FIELD_NAMES = {
    "clients": "num_clients",
    "rounds": "num_rounds",
    "participation": "schedule",
}


@dataclasses.dataclass(frozen=True)
class EarlyStop:
    """The end of a run by a stopping rule.

    Attributes:
        after: the number of rounds after which the run ended.
        estimate: ε after these rounds.
    """

    after: int
    estimate: EpsilonEstimate


@dataclasses.dataclass(frozen=True, eq=False)
class Findings:
    """The plan of the audit, and what was observed during the run.

    Attributes:
        plan: how the canaries change the run, in sentences.
        doubts: why the run's numbers may be wrong, in sentences.
        missing_canaries_reason: why fewer canaries took part than were planned, or why the audit
            ended before the run; the reason of `NotMeasured` if fewer than two took part.
        unbounded: why ε for an adversary who sees every round's model is infinite; ``None`` if
            there is no such reason.
        mechanism_faults: faults of the clipping, sampling or noise, in sentences.
        unchecked_assumptions: assumptions of privacy accounting that were not checked, as phrases.
        noise: results of the checks of the noise, in sentences.
        last_model_is_finite: whether the strategy's last model was finite; otherwise the record has
            its last finite one.
        last_model_is_final: whether no rounds follow those of the record.
        clients_add_noise: whether clients add noise themselves, and canaries do not.
        client_participations: counted mean number of rounds of a real client.
        arrays_left_out: arrays of the model to which no canary is added.
        resumed_after: rounds after which the audit was resumed.
        stopped: the end of the run by the rule `Design.stop_when`; ``None`` if it did not end so.
    """

    plan: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    missing_canaries_reason: str | None = None
    unbounded: str | None = None
    mechanism_faults: tuple[str, ...] = ()
    unchecked_assumptions: tuple[str, ...] = ()
    noise: tuple[str, ...] = (
        "Noise: cannot be told, because only sums or models with noise were observed.",
    )
    last_model_is_finite: bool = True
    last_model_is_final: bool = True
    clients_add_noise: bool = False
    client_participations: float | None = None
    arrays_left_out: tuple[str, ...] = ()
    resumed_after: tuple[int, ...] = ()
    stopped: EarlyStop | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ClientLog:
    """The participation pattern of the real clients, as far as it is known.

    Attributes:
        ids: ids of the clients of all rounds, one round after another.
        offsets: ``(T + 1,)``; the clients of round t are ``ids[offsets[t]:offsets[t + 1]]``.
        absent: ``(T,)``, number of lost updates of clients and canaries.
        weights: the contribution of each entry of ``ids``, divided by the round's
            `Mechanism.contribution_norms`, of the same shape; with ``None``, all count as 1.
    """

    ids: Integers | None = None
    offsets: Integers | None = None
    absent: Integers | None = None
    weights: Floats | None = None

    def summed_weights(self, round_weights: Floats) -> Floats:
        """Sum over each client's rounds of ``round_weight · weight``, indexed by client id.

        Args:
            round_weights: a factor for each round, ``(T,)``.

        Raises:
            ValueError: if the participation pattern is not known.
        """
        return self._summed(round_weights, power=1)

    def summed_squared_weights(self, round_weights: Floats) -> Floats:
        """Sum over each client's rounds of ``(round_weight · weight)²``, indexed by client id.

        Args:
            round_weights: a factor for each round, ``(T,)``.

        Raises:
            ValueError: if the participation pattern is not known.
        """
        return self._summed(round_weights, power=2)

    def _summed(self, round_weights: Floats, power: int) -> Floats:
        """Sum over each client's rounds of ``(round_weight · weight)^power``."""
        ids, rounds, weights = self.rows()
        terms = (round_weights[rounds] * weights) ** power
        return np.bincount(ids, terms).astype(np.float64)

    def weights_by_round(self, clients: Integers) -> Floats:
        """The weights of m clients in each round, ``(T, m)``; 0 in rounds without the client.

        Args:
            clients: ids of the clients, ``(m,)``.

        Raises:
            ValueError: if the participation pattern is not known.
        """
        ids, rounds, weights = self.rows()
        columns_by_id = np.full(int(ids.max(initial=-1)) + 1, -1)
        columns_by_id[clients] = np.arange(len(clients))
        columns = columns_by_id[ids]
        is_chosen = columns >= 0
        num_rounds = len(np.asarray(self.offsets)) - 1
        weights_by_round = np.zeros((num_rounds, len(clients)))
        weights_by_round[rounds[is_chosen], columns[is_chosen]] = weights[
            is_chosen
        ]
        return weights_by_round

    def rows(self) -> tuple[Integers, Integers, Floats]:
        """The client's id, the round and the weight of each participation, as three arrays.

        Raises:
            ValueError: if the participation pattern is not known.
        """
        if self.ids is None or self.offsets is None:
            raise ValueError(
                "Expected a record that says which client took part in which round."
            )
        rounds = np.repeat(
            np.arange(len(self.offsets) - 1), np.diff(self.offsets)
        )
        weights = self.weights
        if weights is None:
            weights = np.ones(len(self.ids))
        return self.ids, rounds, weights


@dataclasses.dataclass(frozen=True, eq=False)
class Provenance:
    """Where a record comes from.

    Attributes:
        seeds: seeds by name; the noise seed only if the user chose it.
        canary_kind: kind of the canaries' directions, see `CanarySet`.
        versions: versions of the packages that affect a result, see `installed_versions`.
        faults: the first messages about faults.
        fault_counts: number of faults of each kind, see `FaultKind`.
        started: time at which a command began the run, in UTC, as in "2026-01-31T23:59:59Z".
        ended: time at which the run ended, in the same format.
        commands: the commands as typed, without seeds.
        seconds: mean time that the audit takes in a round; ``None`` if it was not measured.
        canary_bytes: the largest memory for the canaries of a round, in bytes.
    """

    seeds: dict[str, int | None] = dataclasses.field(default_factory=dict)
    canary_kind: CanaryKind = "sphere"
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    started: str | None = None
    ended: str | None = None
    commands: tuple[str, ...] = ()
    seconds: float | None = None
    canary_bytes: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class RunningScores:
    """Scores after each round of a run whose ε was estimated during it, see `epsilon_by_round`.

    Attributes:
        scores: ``(T, k)``, whitened scores of the observed canaries (`RoundCorrelation.whiten`).
        signals: ``(T, k)``, their whitened expected scores.
        planned: planned total of the participations of all canaries; ``None`` without a plan.
        law_was_known: whether `Mechanism.participation` was known before the run, so that ε is for
            a client with this law; otherwise ε is for a client that takes part as often as the
            median canary, in known rounds.
    """

    scores: Floats | None = None
    signals: Floats | None = None
    planned: float | None = None
    law_was_known: bool = False


# Cached, because each call reads files.
_version = functools.cache(importlib.metadata.version)


def installed_versions() -> dict[str, str]:
    """Versions of the installed packages that affect a run's result."""
    names = (
        "fl-epe",
        "flwr",
        "torch",
        "numpy",
        "scipy",
        "dp-accounting",
        "opacus",
    )
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = _version(name)
    return versions


def quotients(parts: Floats, wholes: Floats) -> Floats:
    """``parts / wholes``, in the shape of ``parts``; 0 where ``wholes`` is not above 0."""
    return np.divide(parts, wholes, out=np.zeros_like(parts), where=wholes > 0)
