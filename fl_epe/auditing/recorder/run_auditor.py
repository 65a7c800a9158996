"""`RunAuditor`: the recorder of every audited run, for any training loop.

Call `begin` with the initial model, `observe` after every round, `epsilon_so_far` at any time, and
`record` at the end. No framework is needed.

Examples:
    >>> auditor = RunAuditor(num_canaries=2, unobserved=0, seed=1, delta=1e-5)
    >>> auditor.begin(np.zeros(100))
    >>> auditor.observe(
    ...     auditor.canaries.vector(0) + auditor.canaries.vector(1),
    ...     RoundFacts(present=[0, 1], contribution=1.0))
    >>> auditor.record().num_canaries
    2
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_epe.auditing.answer import AuditedClient, EpsilonSoFar, analytical
from fl_epe.auditing.estimate import EpsilonEstimate, epsilon_metrics
from fl_epe.auditing.record import (
    LEAST_CANARIES,
    WINDOW,
    AuditRecord,
    ClientLog,
    FaultBook,
    Provenance,
    RoundCorrelation,
    RunningScores,
    Whitener,
    installed_versions,
    whitened_row,
)
from fl_epe.auditing.recorder.round_scores import (
    OTHERS,
    RoundFacts,
    SeenRounds,
    record_from_scorer,
    score_round,
)
from fl_epe.canaries import CanaryKind, CanaryScorer, CanarySet
from fl_epe.checks import (
    Integers,
    NamedArrays,
    Vector,
    check_count,
    check_not_negative,
    check_positive,
    check_probability,
    raise_invalid,
)
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.schedules import ParticipationLaw


@dataclasses.dataclass(eq=False, repr=False)
class RunAuditor:
    """Scores canaries against the released vectors of every round, and collects an `AuditRecord`.

    Canaries 0 … ``num_canaries`` − 1 may take part; the ``unobserved`` canaries after them
    never do. Models are flat vectors of shape ``(dim,)``; the first one's length is the
    canaries' dimension.

    Attributes:
        num_canaries: number of canaries that may take part, at least 2.
        unobserved: number of canaries that are only scored.
        seed: seed of the canaries.
        delta: target δ.
        server: the server's step on the mean of the updates: SGD with a learning rate and
            momentum, which the audit undoes, or the name of an optimizer that it cannot undo.
        planned: planned participations of all canaries together, see `EpsilonSoFar`.
        client: the law of a client's participations, if it is known before the run, see
            `EpsilonSoFar`.
        kind: kind of the canaries, see `CanarySet`.
        series: names of the vectors that `observe` gets, if more is known than the models. The
            first is "mean", the released mean, or "others", that mean without the canaries.
            Next may come "residual", the mean without real clients, and last "delta", the
            update by an optimizer that is not linear.
        follow: whether to estimate ε during the run. Independent canaries are then regenerated
            in each of their rounds.
        window: number of rounds over which correlations are followed: 1 if rounds are known to
            be independent, more than `WINDOW` if noise is known to be correlated over more.
            Independent canaries are scored as if rounds were independent.
        faults: the book of the run's faults, which the record includes.

    Raises:
        ValueError: for an argument out of range.
    """

    num_canaries: int
    unobserved: int
    _: dataclasses.KW_ONLY
    seed: int
    delta: float
    server: ServerSGD | str = dataclasses.field(default_factory=ServerSGD)
    planned: float | None = None
    client: ParticipationLaw | None = None
    kind: CanaryKind = "rotation"
    series: tuple[str, ...] = ()
    follow: bool = True
    window: int = WINDOW
    faults: FaultBook = dataclasses.field(default_factory=FaultBook)

    def __post_init__(self) -> None:
        if self.planned is not None:
            check_positive("planned", self.planned)
        if self.num_canaries < LEAST_CANARIES:
            raise_invalid(
                "num_canaries", self.num_canaries, f">= {LEAST_CANARIES}"
            )
        check_not_negative("unobserved", self.unobserved)
        check_probability("delta", self.delta)
        check_count("window", self.window)
        self._scorer: CanaryScorer | None = None
        self._rounds = SeenRounds(self.num_canaries)

    @property
    def rounds(self) -> int:
        """The number of rounds observed so far."""
        return len(self._rounds)

    @property
    def canaries(self) -> CanarySet:
        """All canaries, observed and unobserved.

        Raises:
            ValueError: before `begin`.
        """
        return self._started().canaries

    def set_plain_sgd(self) -> None:
        """Set the server's step to SGD that adds the mean, if only a name was known before.

        Means of the previous rounds do not change: for an unknown step they are the model updates.
        """
        self.server = ServerSGD()

    def begin(self, theta: Vector) -> None:
        """Start the audit with the initial model, shape ``(dim,)``.

        Raises:
            ValueError: if the audit has begun already, or the model is not a finite vector.
        """
        if self._scorer is not None:
            raise ValueError(
                f"Expected a new RunAuditor: this one has seen {self.rounds} rounds."
            )
        if theta.ndim != 1 or not math.isfinite(norm(theta)):
            raise ValueError(
                f"Expected theta.shape={theta.shape} to be (dim,), and finite."
            )
        dim = len(theta)
        count = self.num_canaries + self.unobserved
        canaries = CanarySet(dim, count, self.seed, self.kind)
        self._scorer = CanaryScorer(canaries)
        # Whitening needs the scores of all canaries in each round.
        window = self.window if canaries.fast and self.follow else 1
        self._whitener = Whitener(dim, window)
        self._so_far = EpsilonSoFar(
            dim,
            self.num_canaries,
            self.planned,
            self._whitener.window,
            self.client,
        )
        # One zero stands for the velocity of all parameters.
        self._velocity: Vector = np.zeros(1, np.float32)
        self._start = theta
        self._last = theta

    def observe(
        self,
        theta: Vector | None,
        facts: RoundFacts,
        vectors: Vector | None = None,
        *,
        released: Mapping[str, Vector] | None = None,
    ) -> None:
        """Add a round.

        Args:
            theta: the model after the round; ``None`` if only ``released`` is known. If neither is
                given, the round was lost: the model did not change, and no canary counts as
                present.
            facts: the canaries that took part, and their contributions.
            vectors: the canaries of ``facts.present``, shape ``(K, dim)``, if they are in memory;
                otherwise they are regenerated.
            released: the vectors named in the auditor's ``series``.

        Raises:
            ValueError: before `begin`, or for a model of another shape or that is not finite.
            IndexError: if a canary id is not in the set.
        """
        scorer = self._scorer_of_rounds()
        names = self._scored_series
        model = self._last if theta is None else theta
        if model.shape != self._last.shape:
            raise_invalid(
                "theta.shape", model.shape, f"to be {self._last.shape}"
            )
        is_lost = theta is None and released is None
        if is_lost:
            facts = dataclasses.replace(
                facts, present=(), contribution=0.0, weights=()
            )
            released = dict.fromkeys(names, np.zeros_like(self._last))
        for canary in facts.present:
            if not 0 <= canary < self.num_canaries:
                raise IndexError(
                    f"Expected present={canary} in [0, num_canaries={self.num_canaries})."
                )
        velocity = self._velocity
        if released is None:
            released, velocity = self._derived(model - self._last)
        if tuple(released) != names:
            raise_invalid("released", tuple(released), f"to be {names}")
        dots = [scorer.add(name, vector) for name, vector in released.items()]
        scores = np.zeros(self.num_canaries)
        signals = np.zeros(self.num_canaries)
        residual = None
        if self.follow:
            scores, signals, residual = score_round(
                scorer.canaries,
                self.num_canaries,
                released[names[0]],
                facts,
                dots=dots[0],
                vectors=vectors,
                in_mean=names[0] != OTHERS,
                score_absent=self._whitener.window > 1,
            )
        row = self._whitener.add(residual)
        # The other entries of the row are the weights of the rounds before this one.
        num_previous = len(row) - 1
        scores = whitened_row(
            row, scores, self._rounds.last("scores", num_previous)
        )
        signals = whitened_row(
            row, signals, self._rounds.last("signals", num_previous)
        )
        self._so_far.add(facts.present, scores, signals)
        self._rounds.add(facts, norm(model, self._last), scores, signals, row)
        self._last = model
        self._velocity = velocity

    def _derived(self, update: Vector) -> tuple[dict[str, Vector], Vector]:
        """The released vectors that follow from a model update, and the server's next velocity.

        For an unknown step the update itself counts as the mean.
        """
        if not isinstance(self.server, ServerSGD):
            return {"mean": update}, self._velocity
        velocity, mean = self.server.undo(self._velocity, update)
        if self.server.momentum > 0:
            return {"mean": mean, "delta": update}, velocity
        return {"mean": mean}, self._velocity

    @property
    def _scored_series(self) -> tuple[str, ...]:
        """Names of the vectors that are scored; the first is the released mean."""
        if self.series:
            return self.series
        if isinstance(self.server, ServerSGD) and self.server.momentum > 0:
            return ("mean", "delta")
        return ("mean",)

    def _scorer_of_rounds(self) -> CanaryScorer:
        """The scorer, from which vectors of a round whose `observe` raised an error are removed."""
        scorer = self._started()
        if len(scorer.norms(self._scored_series[0])) > self.rounds:
            scorer.restore(scorer.state(self._scored_series), self.rounds)
        return scorer

    def epsilon_so_far(self) -> EpsilonEstimate | None:
        """ε of a client at the target δ after the rounds so far, see `EpsilonSoFar`.

        It is ``None`` before two canaries took part, and without ``follow``. The interval holds
        after all rounds at once, so a run may be stopped by it. The results of a finished run
        are `fl_epe.auditing.answers`.
        """
        if self._scorer is None:
            return None
        return self._so_far.estimate(self.delta)

    @property
    def canaries_seen(self) -> int:
        """The number of canaries that have taken part so far."""
        if self.rounds:
            return self._so_far.canaries_seen
        return 0

    def metrics_so_far(
        self, z: float | None = None, noise_cohort_size: float | None = None
    ) -> dict[str, float]:
        """`epsilon_so_far`, and the analytical ε of independent noise at known rounds, by name.

        A value is NaN if it is not known. ε so far counts as not known if there is no noise and
        canaries take part much less often than a client.

        Args:
            z: noise multiplier; ``None`` if it is not known.
            noise_cohort_size: see `Mechanism`.
        """
        theory: float | None = None
        is_hidden = self.client is not None and self.client.hidden
        if self.canaries_seen and z is not None and not is_hidden:
            mechanism = dataclasses.replace(
                self._rounds.mechanism(
                    self.server, np.arange(self.num_canaries), self.client
                ),
                noise_multiplier=z,
                noise_cohort_size=noise_cohort_size,
            )
            patterns = np.empty((self.rounds, 0))
            client = AuditedClient(self._so_far.participations, patterns)
            theory = analytical(mechanism, client, self.delta).epsilon
        estimate = None
        if self._scorer is not None and (z or not self._so_far.extrapolates):
            estimate = self.epsilon_so_far()
        return {
            "epsilon-analytical": math.nan if theory is None else theory,
            **epsilon_metrics("all", estimate),
        }

    def state(self, *, keep_waiting: bool = False) -> dict[str, np.ndarray]:
        """Named arrays from which `restore` continues; the models are not among them.

        Args:
            keep_waiting: whether to store vectors that wait to be scored, so that results after
                a `restore` are equal to the last bit; otherwise these vectors are scored first.

        Raises:
            ValueError: before `begin`.
        """
        series = None if keep_waiting else self._scored_series
        return {
            **self._rounds.state(),
            **self._started().state(series),
            "sketches": self._whitener.state(),
            **self.faults.state(),
        }

    def restore(
        self,
        state: NamedArrays,
        rounds: int,
        *,
        start: Vector,
        last: Vector,
        velocity: Vector | None = None,
    ) -> None:
        """Continue from the first ``rounds`` rounds of a `state`; replaces `begin`.

        Intervals of ε so far hold together for all rounds; the intervals of discarded rounds are
        not included in this.

        Args:
            state: the `state` of an auditor with the same arguments.
            rounds: number of its rounds that count; later rounds are discarded.
            start: the initial model, shape ``(dim,)``.
            last: the model after those rounds.
            velocity: velocity of the server's momentum after those rounds; 0 by default.

        Raises:
            ValueError: if the audit has begun already, or the state does not fit.
        """
        restored = SeenRounds(self.num_canaries)
        restored.restore(state, rounds)
        self.begin(start)
        self._rounds = restored
        if "waiting.names" in state:
            self._started().restore(state)
        else:
            self._started().restore(state, rounds)
        self._whitener.restore(
            state["sketches"], len(state["presence"]) - rounds
        )
        presence = restored["presence"]
        scores = restored["scores"]
        signals = restored["signals"]
        for t in range(rounds):
            self._so_far.add(np.flatnonzero(presence[t]), scores[t], signals[t])
        self._last = last
        if velocity is not None:
            self._velocity = velocity
        self.faults.restore(state, rounds)

    def record(
        self,
        observed: Integers | None = None,
        final: Vector | None = None,
        **facts: Any,
    ) -> AuditRecord:
        """The record of the run so far; every canary is scored against every round.

        A canary that has never taken part counts as unobserved. A record with fewer than two
        observed canaries is valid, but has no ε, see `fl_epe.auditing.NotMeasured`.

        Args:
            observed: ids of the observed canaries; by default those that took part.
            final: the final model; by default the last one that was observed.
            facts: values of the record that cannot be computed from models, such as
                ``noise_multiplier``, or parts such as ``mechanism``; see
                `AuditRecord.with_values`.

        Raises:
            ValueError: before `begin`.
        """
        scorer = self._scorer_of_rounds()
        # The last bits of scores depend on which vectors are scored together. If those of the
        # rounds are scored now, a second record of the same rounds has the same bits.
        scorer.flush()
        rounds = self._rounds
        presence = rounds["presence"]
        ids = observed
        if ids is None:
            ids = np.flatnonzero(presence.any(axis=0))
        running = RunningScores()
        if self.follow:
            running = RunningScores(
                rounds["scores"].take(ids, axis=1),
                rounds["signals"].take(ids, axis=1),
                self.planned,
                law_was_known=self.client is not None,
            )
        if final is None:
            final = self._last
        is_sgd = isinstance(self.server, ServerSGD)
        return record_from_scorer(
            scorer,
            ids,
            start=self._start,
            final=final,
            delta_norms=rounds["update_norms"],
            delta_series="delta" if is_sgd else self._scored_series[-1],
            released=self._scored_series[0],
            values=facts,
            presence=presence[:, ids],
            delta=self.delta,
            mechanism=rounds.mechanism(self.server, ids, self.client),
            clients=ClientLog(absent=rounds["absent"].astype(np.int64)),
            provenance=Provenance(
                {"canary": self.seed},
                self.kind,
                installed_versions(),
                **self.faults.values(),
            ),
            correlation=RoundCorrelation.of(rounds.factor, len(self._start)),
            running=running,
        )

    def _started(self) -> CanaryScorer:
        """The scorer; raises before `begin`."""
        if self._scorer is None:
            raise ValueError(
                "Expected begin(theta) with the initial model first."
            )
        return self._scorer
