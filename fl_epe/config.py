"""`RunConfig`: the settings that determine the result of an audited run."""

import dataclasses
import functools
import math
import re
from typing import Literal, assert_never

from fl_epe import checks
from fl_epe.auditing import LEAST_FOR_NULL, CanaryLoad, canary_load
from fl_epe.canaries import CanaryKind
from fl_epe.mechanism import (
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    Strategy,
    clip_norms,
    parse_strategy,
)
from fl_epe.schedules import Schedule, make_schedule, replays_log
from fl_epe.seeding import NoiseGenerator
from fl_epe.wording import how_often

# Number of observed and of unobserved canaries in Andrew et al. 2024.
_PAPER_CANARIES = 1000
# The number of voters, divided by the standard deviation of the noise on the count of unclipped
# updates (Andrew et al. 2021).
_VOTERS_PER_COUNT_STD = 20

# "epsilon-all-low > X" or "epsilon-all-high < X".
_STOP_RULE = re.compile(
    r"\s*epsilon-all-(?:low\s*>\s*(?P<low>\S+)|high\s*<\s*(?P<high>\S+))\s*"
)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Settings of an audited DP-FedAvg run. They are all checked before the run starts.

    Attributes:
        clients: number m of real clients.
        rounds: number T of training rounds.
        clients_per_round: expected number of real clients in a round.
        participation: participation schedule, with its options if it has some: 'epochs' (freshly
            shuffled, as in the paper), 'poisson', 'min-separation:separation=5' or another kind;
            'fl-epe schedules' lists all of them. Canaries follow a schedule of the same kind.
        canary_design: how canaries take part. 'ladder': the schedule has places for a few more
            clients. Most places are one canary's, which takes part as often as a client. Some
            places are divided among several canaries, which take part half as often, a quarter as
            often, and so on to once. 'paper': 1000 canaries take part once each.
        num_canaries: number of places of the ladder, or of canaries if there is no ladder (default:
            as many as the canaries' share of a round allows, but no more than narrow intervals
            need); 0 for a run that measures no ε.
        canary_participations: number of rounds in which each canary takes part, instead of the
            ladder; a mean if the schedule is random.
        canary_share: largest expected share of canaries in a round, which limits the default
            number of canaries.
        unobserved: number of canaries that never take part and are only scored (default: few if
            the null distribution of scores is known; 1000 otherwise, and in the paper's design).
        inclusion: which canaries take part: 'fixed', all but the unobserved ones; or 'coin', an
            independent fair coin decides for each canary, including the unobserved ones, as
            one-run bounds need. Not with the ladder.
        canary_kind: how the canaries' directions are drawn: 'rotation', for which two fast
            transforms compute all scores, or 'sphere', independent normal vectors as in the paper.
        noise_multiplier: z, the standard deviation of the DP noise on the sum of updates, divided
            by the clip norm; 0 for no noise.
        noise_generator: generator of the DP noise: 'chacha20', a stream cipher, some of whose
            numbers do not reveal others; or 'sfc64', for benchmarks only.
        mechanism: how the noise of rounds is correlated: 'independent', or a matrix mechanism:
            'tree', 'banded:bands=8', 'toeplitz', 'blt:buffers=3' or a .npy file with its lower
            triangular strategy matrix. A client that takes part once has the same ε with all of
            them.
        clipping: how the clip norm is chosen: 'adaptive' (it follows a quantile of the update
            norms, Andrew et al. 2021) or 'fixed'.
        clip_norm: clip norm (an L2 norm); with adaptive clipping, that of the first round.
        clip_quantile: share of updates that the adaptive clip norm leaves unclipped.
        clip_rate: step size of the adaptive clip norm.
        clip_count_std: standard deviation of the noise on the count of unclipped updates
            (default: voters / 20, and at least z, so that the sum has at most 16% more noise).
        canaries_vote: let canaries vote on the adaptive clip norm, as in the paper's code.
        server_optimizer: optimizer of the server: 'sgd' or 'adam'.
        server_learning_rate: learning rate of the server.
        server_momentum: momentum of the server's sgd.
        local_epochs: number of passes of a client over its data in a round.
        local_batch_size: number of examples in a client's step.
        local_learning_rate: learning rate of a client.
        delta: target δ (default: clients^-1.1).
        full_knowledge: also measure ε for an adversary who knows everything but one canary: the
            sum of the real clients' updates of every round, and the other canaries.
        stop_when: end the run as soon as ε is shown to be above a limit, 'epsilon-all-low > 8', or
            below one, 'epsilon-all-high < 2'. The two names are the ends of a 95% interval for ε,
            for an adversary who sees every round's model. The interval holds for all rounds
            simultaneously, so it remains valid if it stops the run.
    """

    clients: int
    rounds: int = 60
    clients_per_round: int = 24
    participation: str = "epochs"
    canary_design: Literal["ladder", "paper"] = "ladder"
    num_canaries: int | None = None
    canary_participations: float | None = None
    canary_share: float = 0.1
    unobserved: int | None = None
    inclusion: Literal["fixed", "coin"] = "fixed"
    canary_kind: CanaryKind = "rotation"
    noise_multiplier: float = 0.25
    noise_generator: NoiseGenerator = "chacha20"
    mechanism: str = "independent"
    clipping: Literal["adaptive", "fixed"] = "adaptive"
    clip_norm: float = 0.5
    clip_quantile: float = 0.5
    clip_rate: float = 0.2
    clip_count_std: float | None = None
    canaries_vote: bool = False
    server_optimizer: Literal["sgd", "adam"] = "sgd"
    server_learning_rate: float = 0.25
    server_momentum: float = 0.9
    local_epochs: int = 2
    local_batch_size: int = 16
    local_learning_rate: float = 0.05
    delta: float | None = None
    full_knowledge: bool = False
    stop_when: str | None = None

    def __post_init__(self) -> None:
        checks.check_types(self)
        self._check_values()
        self._set_canaries()
        # Constructing each part checks the other values, such as schedules that are impossible.
        self.client_schedule()
        self.canary_schedule()
        self.optimizer()
        self.strategy()
        self.sum_noise_multiplier()

    def _check_values(self) -> None:
        """Check single values, and values that exclude each other."""
        checks.check_count("clients", self.clients)
        checks.check_count("rounds", self.rounds)
        checks.check_count("clients_per_round", self.clients_per_round)
        checks.check_count("local_epochs", self.local_epochs)
        checks.check_count("local_batch_size", self.local_batch_size)
        checks.check_positive("clip_norm", self.clip_norm)
        checks.check_positive("local_learning_rate", self.local_learning_rate)
        checks.check_probability("canary_share", self.canary_share)
        if self.unobserved is not None and (
            self.unobserved < 0 or self.unobserved == 1
        ):
            checks.raise_invalid(
                "unobserved", self.unobserved, "to be 0 or >= 2"
            )
        if self.clients_per_round > self.clients:
            raise checks.ArgumentError(
                "Expected {clients_per_round} <= {clients}.",
                clients_per_round=self.clients_per_round,
                clients=self.clients,
            )
        checks.check_noise_multiplier("noise_multiplier", self.noise_multiplier)
        checks.check_probability("delta", self.target_delta)
        if self.stop_when is None:
            return
        if _stop_rule(self.stop_when) is None:
            checks.raise_invalid(
                "stop_when",
                self.stop_when,
                "to be 'epsilon-all-low > X' or 'epsilon-all-high < X', with a finite X >= 0: the "
                "ends of an interval that holds for all rounds simultaneously",
            )
        if self.by_coin:
            raise checks.ArgumentError(
                "Expected no {stop_when} with {inclusion}: bounds for coins need a number of "
                "canaries that does not depend on their scores.",
                stop_when=self.stop_when,
                inclusion=self.inclusion,
            )

    @property
    def target_delta(self) -> float:
        """``delta``; by default m^-1.1 for m clients, as in the paper."""
        return chosen_delta(self.delta, self.clients)

    @property
    def on_ladder(self) -> bool:
        """Whether canaries are on the ladder (`fl_epe.canaries.ladder`)."""
        match self.canary_design:
            case "ladder":
                return self.canary_participations is None
            case "paper":
                return False
        assert_never(self.canary_design)

    @property
    def by_coin(self) -> bool:
        """Whether a coin decides which canaries take part."""
        match self.inclusion:
            case "fixed":
                return False
            case "coin":
                return True
        assert_never(self.inclusion)

    @functools.cached_property
    def load(self) -> CanaryLoad:
        """The canaries beside the clients, with their expected precision."""
        schedule = self.client_schedule()
        return canary_load(
            self.clients,
            rounds=self.rounds,
            participations=schedule.participations(),
            delta=self.target_delta,
            noise_multiplier=self.noise_multiplier,
            secret=schedule.law(self.clients).hidden,
            momentum=getattr(self.optimizer(), "momentum", 0.0),
            share=self.canary_share,
            places=self.num_canaries if self.on_ladder else None,
        )

    def _set_canaries(self) -> None:
        """Check the settings of canaries, and set those that are ``None`` to their defaults."""
        if self.by_coin and self.on_ladder:
            raise checks.ArgumentError(
                "Expected {canary_design} to be 'paper', or canary_participations, with "
                "{inclusion}: the ladder decides which canary takes part in which round.",
                canary_design=self.canary_design,
                inclusion=self.inclusion,
            )
        is_paper = self.canary_design == "paper"
        participations = self.canary_participations
        if is_paper and participations is None:
            participations = 1.0
        count = self.num_canaries
        if count is None and is_paper:
            count = _PAPER_CANARIES
        elif (
            count is None and participations is not None and participations > 0
        ):
            count = int(self.load.total_participations / participations)
            if count == 1:
                count = 0  # one canary has no spread
        is_invalid = count is not None and count < 0
        if count == 1:
            # One place of the ladder is divided among canaries, unless its rounds are secret.
            is_invalid = not self.on_ladder or self.load.secret
        if is_invalid:
            checks.raise_invalid(
                "num_canaries", count, "to be 0 or an integer >= 2"
            )
        unobserved = self.unobserved
        if unobserved is None and self.by_coin:
            unobserved = count or 0
        elif unobserved is None:
            # The null distribution of scores is known if the canaries are from a rotation.
            has_known_null = not is_paper and self.canary_kind == "rotation"
            unobserved = LEAST_FOR_NULL if has_known_null else _PAPER_CANARIES
        object.__setattr__(self, "num_canaries", count)
        object.__setattr__(self, "canary_participations", participations)
        object.__setattr__(self, "unobserved", unobserved)

    @property
    def canaries_per_round(self) -> float:
        """Expected number of canaries in a round."""
        if self.on_ladder:
            return self.load.total_participations / self.rounds
        participants = float(self.num_canaries or 0)
        if self.by_coin:
            participants = (participants + (self.unobserved or 0)) / 2
        return (
            participants * self.canary_schedule().participations() / self.rounds
        )

    @property
    def cohort_size(self) -> float:
        """Expected number n of real clients in a round, which is the mean's denominator.

        Canaries are added to the sum but not counted, so that training has the step sizes that
        it would have without them.
        """
        return self.client_schedule().cohort_size(self.clients)

    def canary_plan(self) -> list[str]:
        """Sentences about the canaries' share of a round and their expected precision."""
        if self.num_canaries == 0:
            return ["The run has no canaries, and measures no ε."]
        if self.on_ladder:
            return self.load.sentences()
        share = self.canaries_per_round / (
            self.cohort_size + self.canaries_per_round
        )
        frequency = how_often(self.canary_participations or 0)
        return [
            f"{self.num_canaries:,} canaries take part {frequency} each, "
            f"{100 * share:.2g}% of a round beside {self.clients:,} clients."
        ]

    def client_schedule(self) -> Schedule:
        """The participation schedule of the real clients."""
        participations = self.rounds * self.clients_per_round / self.clients
        try:
            return _schedule(self.participation, self.rounds, participations)
        except checks.ArgumentError as error:
            if "participations" not in error.values:
                raise
            # Participations are no setting: the message names the three that determine them.
            values = error.values | {
                "rounds": self.rounds,
                "clients_per_round": self.clients_per_round,
                "clients": self.clients,
            }
            raise checks.ArgumentError(
                f"{error.text} A client takes part {{rounds}} * {{clients_per_round}} / {{clients}}"
                f" = {how_often(participations)}.",
                **values,
            ) from error

    def canary_schedule(self) -> Schedule:
        """The participation schedule of the observed canaries; with the ladder, the clients'.

        Raises:
            ValueError: if the canaries' participations do not fit into the rounds.
        """
        if self.on_ladder:
            return self.client_schedule()
        participations = float(self.canary_participations or 0)
        if not 0 < participations <= self.rounds:
            raise checks.ArgumentError(
                "Expected {canary_participations} in (0, {rounds}].",
                canary_participations=self.canary_participations,
                rounds=self.rounds,
            )
        with checks.rename_arguments(participations="canary_participations"):
            return _schedule(self.participation, self.rounds, participations)

    def clip_rule(self) -> clip_norms.ClipNorm:
        """The rule for the clip norm of a round."""
        match self.clipping:
            case "fixed":
                return clip_norms.FixedClip(self.clip_norm)
            case "adaptive":
                return self._adaptive_clip()
        assert_never(self.clipping)

    def _adaptive_clip(self) -> clip_norms.AdaptiveClip:
        """The rule for an adaptive clip norm."""
        voters = float(self.clients_per_round)
        if self.canaries_vote:
            voters += self.canaries_per_round
        count_std = self.clip_count_std
        if count_std is None:
            count_std = max(
                voters / _VOTERS_PER_COUNT_STD, self.noise_multiplier
            )
        with checks.rename_arguments(
            initial_norm="clip_norm",
            quantile="clip_quantile",
            rate="clip_rate",
            count_std="clip_count_std",
        ):
            return clip_norms.AdaptiveClip(
                self.clip_norm,
                self.clip_quantile,
                self.clip_rate,
                count_std,
                voters,
            )

    def sum_noise_multiplier(self) -> float:
        """Noise multiplier of the sum: z, adjusted for the adaptive clip norm's noisy count."""
        with checks.rename_arguments(count_std="clip_count_std"):
            return self.clip_rule().sum_noise_multiplier(self.noise_multiplier)

    def strategy(self) -> Strategy | None:
        """The strategy matrix of correlated noise; ``None`` for independent noise."""
        return parse_strategy(self.mechanism, self.rounds)

    def stops_at(self, low: float, high: float) -> bool:
        """Whether `stop_when` ends the run when the interval for ε has these ends."""
        rule = _stop_rule(self.stop_when or "")
        if rule is None:
            return False
        end, limit = rule
        if end == "low":
            return low > limit
        return high < limit

    def optimizer(self) -> ServerOptimizer:
        """The server's optimizer."""
        with checks.rename_arguments(
            learning_rate="server_learning_rate", momentum="server_momentum"
        ):
            match self.server_optimizer:
                case "sgd":
                    return ServerSGD(
                        self.server_learning_rate, self.server_momentum
                    )
                case "adam":
                    return ServerAdam(self.server_learning_rate)
        assert_never(self.server_optimizer)


def _stop_rule(text: str) -> tuple[str, float] | None:
    """The end of the interval, "low" or "high", and its limit; ``None`` for an invalid rule."""
    match = _STOP_RULE.fullmatch(text)
    if match is None or match.lastgroup is None:
        return None
    try:
        limit = float(match[match.lastgroup])
    except ValueError:
        return None
    if 0 <= limit < math.inf:
        return (match.lastgroup, limit)
    return None


def chosen_delta(delta: float | None, clients: int) -> float:
    """``delta``; by default m^-1.1 for m clients, as in the paper.

    Raises:
        ArgumentError: for fewer than two clients without a ``delta``.
    """
    if delta is not None:
        return delta
    if clients < 2:
        raise checks.ArgumentError(
            "Expected {clients} >= 2, or a delta.", clients=clients
        )
    return float(clients**-1.1)


@functools.lru_cache(maxsize=16)
def _schedule(
    participation: str, rounds: int, participations: float
) -> Schedule:
    """The schedule that a text describes; a recorded trace is an error."""
    # In the text, "rounds" is an unknown option, not the argument of this function.
    with checks.argument_context("participation", participation):
        replays = replays_log(participation)
    if replays:
        raise checks.ArgumentError(
            "Expected {participation} to be no recorded trace: traces are for the "
            "high-dimensional limit, in 'fl-epe compare' and 'fl-epe advise'.",
            participation=participation,
        )
    with checks.argument_context(
        "participation", participation, "rounds", "participations"
    ):
        return make_schedule(participation, rounds, participations)
