"""The plan of an audit: the number of canaries and their rounds, decided in the first round."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from fl_epe.auditing import MAX_CANARY_SHARE, CanaryLoad, canary_load
from fl_epe.checks import Booleans
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import ParticipationLaw, ShuffledEpochs, presence
from fl_epe.seeding import generator

# A stream of the audit's own random choices.
_SCHEDULE_STREAM = 0
# A product of rates may be less than a whole number by rounding.
_ROUNDING = 1e-9
# The participations of each canary if the number of canaries is given. If the audit chooses it,
# canaries take part as often as clients.
_DEFAULT_PARTICIPATIONS = 1.0


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """How many canaries take part, and how many clients they replace; decided in the first round.

    The fields are stored in the checkpoints of an audit.

    Attributes:
        number: the number of canaries that may take part: fewer than requested if not all fit.
        clients: the number of real clients in the first round, including replaced ones.
        nodes: the number of nodes from which they were drawn; ``None`` if it is not known.
        canaries: the largest number of canaries in a round; 0 if client apps send the canaries
            (``clients`` of the settings), as their rounds are then not planned.
        planned: the participations of all canaries together; ``None`` if none takes part, or if
            client apps send the canaries.
        replaced: the largest number of clients in a round that canaries replace. These clients
            are not asked.
        left_out: the names of the arrays of the model to which no canary is added.
        reduced: the reason why fewer canaries take part than requested, or none although the
            audit was to choose their number; "" otherwise.
        load: the load that the audit chose; ``None`` if the number of canaries was given.
    """

    number: int = 0
    clients: int = 0
    nodes: int | None = None
    canaries: int = 0
    planned: float | None = None
    replaced: int = 0
    left_out: Sequence[str] = ()
    reduced: str = ""
    load: CanaryLoad | None = None

    def law(self, rounds: int) -> ParticipationLaw | None:
        """The participation law of a client in a run; ``None`` if no client was asked."""
        # If the number of nodes is not known, all of them are assumed to be in the first round.
        nodes = self.nodes or self.clients
        rate = self.clients / max(1, nodes)
        if rate:
            return ParticipationLaw(rounds, rate * rounds)
        return None

    @property
    def largest_share(self) -> float:
        """The largest share of canaries among the replies of a round."""
        replies = self.clients - self.replaced + self.canaries
        if replies:
            return self.canaries / replies
        return 0.0

    def sentences(self) -> list[str]:
        """The plan in plain English."""
        lines = list[str]()
        if self.load is not None:
            lines += self.load.sentences()
        elif self.canaries:
            lines.append(
                f"Up to {self.canaries} canaries a round, beside {self.clients - self.replaced} of"
                f" {self.clients} clients: {self.largest_share:.0%} of the replies."
            )
        if self.replaced:
            lines.append(
                f"Up to {self.replaced} of {self.clients} clients a round are not asked, as"
                " canaries answer in their place."
            )
        if self.reduced:
            lines.append(self.reduced)
        if self.left_out:
            lines.append(
                f"Arrays without canaries: {', '.join(self.left_out)}."
            )
        return lines


def canaries_that_fit(share: float, clients: int, room: float) -> float:
    """The largest mean number of canaries in a round.

    Args:
        share: the largest share of canaries in the replies.
        clients: the number of clients that the strategy asks.
        room: the number of replies that can be added; further canaries replace clients. A finite
            room was chosen by the user. It is used even if the canaries are then more than
            ``share``, but at most for as many canaries as clients.
    """
    if share == 1:
        return math.inf
    if_added = share / (1 - share) * clients
    if_replacing = share * (
        clients + room
    )  # replies are at most the clients and the room
    by_share = min(if_added, if_replacing)
    if math.isfinite(room):
        return max(by_share, min(room, clients))
    return by_share


def check_rounds(settings: CanaryAuditSettings, rounds: int | None) -> int:
    """The number of rounds of a run, over which canaries that the server makes are spread.

    Raises:
        ValueError: if the number is not known, or the participations do not fit into the
            rounds.
    """
    if rounds is None:
        raise ValueError(
            "Expected rounds=… in CanaryAudit: the total number of rounds. start() was called"
            " without num_rounds, or with 1, which may be one of many starts. Pass the total, for"
            " example rounds=1 if there is a single round."
        )
    # This raises the error for participations that do not fit.
    ShuffledEpochs(rounds, settings.participations or _DEFAULT_PARTICIPATIONS)
    return rounds


def schedule_of_number(
    settings: CanaryAuditSettings,
    rounds: int,
    number: int,
    *,
    skips_first_round: bool,
) -> Booleans:
    """Whether each of a given number of canaries is in each round, shape ``(T, k)``.

    Args:
        settings: the settings of the audit.
        rounds: the number T of rounds.
        number: the number k of canaries.
        skips_first_round: whether the first of several rounds has no canaries. This is so if there
            is no room for one beside the clients, as the weights of the clients that canaries
            replace are not known before the first replies.
    """
    participations = settings.participations or _DEFAULT_PARTICIPATIONS
    rng = generator(settings.canary_seed, _SCHEDULE_STREAM)
    return _place_presence(
        rounds, number, participations, rng, skips_first_round
    )


def schedule_of_load(
    settings: CanaryAuditSettings,
    rounds: int,
    load: CanaryLoad,
    *,
    skips_first_round: bool,
) -> Booleans:
    """Whether each canary of a load is in each round, shape ``(T, k)``.

    A load has places, which follow the schedule of a client. The canaries of a place take turns.

    Args:
        settings: the settings of the audit.
        rounds: the number T of rounds.
        load: the load.
        skips_first_round: see `schedule_of_number`.
    """
    participations = int(load.places * load.place_participations + _ROUNDING)
    if not participations:
        return np.zeros((rounds, 0), bool)
    rng = generator(settings.canary_seed, _SCHEDULE_STREAM)
    by_place = _place_presence(
        rounds,
        load.places,
        participations / load.places,
        rng,
        skips_first_round,
    )
    return load.presence(by_place, rng)


def _place_presence(
    rounds: int,
    places: int,
    participations: float,
    rng: np.random.Generator,
    skips_first_round: bool,
) -> Booleans:
    """Whether a canary of each place is in each round, shape ``(T, places)``."""
    if not places:
        return np.zeros((rounds, 0), bool)
    empty_rounds = 1 if skips_first_round and rounds > 1 else 0
    later_rounds = rounds - empty_rounds
    schedule = ShuffledEpochs(later_rounds, min(participations, later_rounds))
    return np.pad(presence(schedule, places, rng), ((empty_rounds, 0), (0, 0)))


def _load(
    settings: CanaryAuditSettings,
    wrapped: Wrapped,
    rounds: int,
    clients: int,
    nodes: int | None,
) -> CanaryLoad:
    """The load with the clients of the first round; the arguments are those of `make_plan`."""
    # If it is not known, all are assumed to be in the round.
    nodes = nodes or clients
    # By default, canaries take part as often as a client does on average.
    participations = settings.participations or rounds * clients / nodes
    # In the course of a run, this number of clients takes turns in one place of a round. The
    # population thus has ``clients * clients_per_place`` clients.
    clients_per_place = rounds / participations
    noise_multiplier = settings.noise_multiplier
    if noise_multiplier is None:
        # The claimed one, which for an adaptive wrapper is not that of the sum.
        noise_multiplier, _ = wrapped.noise_multipliers()
    # A share that the user chose is kept. The default may grow, up to a limit.
    limit_of_growth = MAX_CANARY_SHARE if settings.max_share is None else None
    return canary_load(
        max(1, round(clients * clients_per_place)),
        rounds=rounds,
        participations=participations,
        delta=settings.delta,
        noise_multiplier=noise_multiplier,
        share=settings.largest_share,
        share_name="max_share",
        max_share=limit_of_growth,
        replies=(clients + wrapped.room(clients)) * clients_per_place,
    )


def make_plan(
    settings: CanaryAuditSettings,
    wrapped: Wrapped,
    rounds: int,
    clients: int,
    nodes: int | None,
) -> AuditPlan:
    """Plan as many canaries as fit beside the clients of the first round; none if only one fits.

    Args:
        settings: the settings of the audit.
        wrapped: the strategy.
        rounds: the number of rounds of the run.
        clients: the number of clients that the strategy asks in the first round.
        nodes: the number of nodes from which they were drawn; ``None`` if it is not known.
    """
    number = settings.num_canaries
    load = None
    reduced = ""
    room = wrapped.room(clients)
    skips_first_round = room < 1
    if number is None:
        load = _load(settings, wrapped, rounds, clients, nodes)
        by_round = schedule_of_load(
            settings, rounds, load, skips_first_round=skips_first_round
        )
        number = by_round.shape[1]
    else:
        schedule_of = functools.partial(
            schedule_of_number,
            settings,
            rounds,
            skips_first_round=skips_first_round,
        )
        by_round = schedule_of(number)
        share = settings.largest_share
        canaries_per_round = canaries_that_fit(share, clients, room) + _ROUNDING
        total = by_round.sum()
        if total > rounds * canaries_per_round:
            num_fitting = int(canaries_per_round * rounds * number / total)
            if num_fitting == 1:
                num_fitting = 0  # one canary has no spread
            reduced = (
                f"Of {number} canaries, {num_fitting} fit into {rounds} rounds with {clients}"
                f" clients, as canaries in more than {share:.0%} of replies harm the model: ask"
                " for fewer canaries, or raise max_share."
            )
            number = num_fitting
            by_round = schedule_of(number)
    canaries = int(by_round.sum(axis=1).max(initial=0))
    replaced = int(min(max(canaries - room, 0), clients))
    if load is not None and number and replaced == clients:
        reduced = (
            "Canaries would replace every client of a round: ask more clients, or raise"
            " num_sampled_clients of the DP wrapper."
        )
        return AuditPlan(0, clients, nodes, reduced=reduced)
    return AuditPlan(
        number=number,
        clients=clients,
        nodes=nodes,
        canaries=canaries,
        planned=float(by_round.sum()) or None,  # None without canaries
        replaced=replaced,
        reduced=reduced,
        load=load,
    )
