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


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """The canaries' share of the rounds, as decided in the first round.

    Attributes:
        number: the number of canaries that may take part: fewer than requested if not all fit.
        clients: the number of real clients in the first round, including replaced ones.
        nodes: the number of nodes from which they were drawn; ``None`` if it is not known.
        canaries: the largest number of canaries in a round; 0 if clients answer with canaries.
        planned: the participations of all canaries together; ``None`` if not known.
        replaced: the number of clients in a round that canaries replace, and that are not
            asked.
        left_out: the names of the arrays that canaries do not move.
        reduced: the reason why fewer canaries take part than requested; "" if all do.
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
        rate = self.clients / max(1, self.nodes or self.clients)
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
            lines.append(f"Canaries leave alone: {', '.join(self.left_out)}.")
        return lines


def canaries_that_fit(share: float, clients: int, room: float) -> float:
    """The largest mean number of canaries in a round.

    Args:
        share: the largest share of canaries in the replies.
        clients: the number of clients that the strategy asks.
        room: the number of replies that can be added; further canaries replace clients. If it
            is finite, the user has chosen it, and canaries fill it up to half of a round.
    """
    if share == 1:
        return math.inf
    # The first number keeps the share if canaries are added to the clients, and the second if
    # they replace those for which there is no room.
    by_share = min(share / (1 - share) * clients, share * (clients + room))
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
            "Expected rounds=… in CanaryAudit, the number of rounds of all starts together:"
            " start() does not have it, or has a single round, which may be one of many (pass"
            " rounds=1 if it is the only one)."
        )
    # This raises the error for participations that do not fit.
    ShuffledEpochs(rounds, settings.participations or 1.0)
    return rounds


def spread(
    settings: CanaryAuditSettings,
    rounds: int,
    number: int,
    load: CanaryLoad | None,
    *,
    replaces: bool,
) -> Booleans:
    """Whether each canary is in each round, shape ``(T, k)``.

    If canaries replace clients, none is in the first of several rounds, as the clients' weights
    are not known before.

    Args:
        settings: the settings of the audit.
        rounds: the number T of rounds.
        number: the number k of canaries, which counts only without a load.
        load: the load, each place of which has one or several canaries; ``None`` without one.
        replaces: whether canaries replace clients.
    """
    places = number
    participations = settings.participations or 1.0
    if load is not None:
        places = load.places
        all_participations = int(places * load.place_participations + _ROUNDING)
        participations = all_participations / max(1, places)
    if not places or not participations:
        return np.zeros((rounds, 0), bool)
    rng = generator(settings.canary_seed, _SCHEDULE_STREAM)
    empty_rounds = 1 if replaces and rounds > 1 else 0
    later_rounds = rounds - empty_rounds
    schedule = ShuffledEpochs(later_rounds, min(participations, later_rounds))
    by_place = np.pad(
        presence(schedule, places, rng), ((empty_rounds, 0), (0, 0))
    )
    if load is None:
        return by_place
    return load.presence(by_place, rng)


def _load(
    settings: CanaryAuditSettings,
    wrapped: Wrapped,
    rounds: int,
    clients: int,
    nodes: int | None,
) -> CanaryLoad:
    """The load with the clients of the first round; the arguments are those of `make_plan`."""
    nodes = nodes or clients
    participations = settings.participations or rounds * clients / nodes
    # In the course of a run, this number of clients takes turns in one place of a round. The
    # population thus has ``clients * clients_per_place`` clients.
    clients_per_place = rounds / participations
    z = settings.noise_multiplier
    return canary_load(
        max(1, round(clients * clients_per_place)),
        rounds=rounds,
        participations=participations,
        delta=settings.delta,
        noise_multiplier=wrapped.noise_multipliers()[0] if z is None else z,
        share=settings.largest_share,
        share_name="max_share",
        max_share=MAX_CANARY_SHARE if settings.max_share is None else None,
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
    spread_of = functools.partial(spread, settings, rounds, replaces=room < 1)
    if number is None:
        load = _load(settings, wrapped, rounds, clients, nodes)
        by_round = spread_of(0, load)
        number = by_round.shape[1]
    else:
        by_round = spread_of(number, None)
        share = settings.largest_share
        canaries_per_round = canaries_that_fit(share, clients, room) + _ROUNDING
        total = by_round.sum()
        if total > rounds * canaries_per_round:
            fit = int(canaries_per_round * rounds * number / total)
            fit = fit if fit >= 2 else 0
            reduced = (
                f"Of {number} canaries, {fit} fit into {rounds} rounds with {clients} clients, as"
                f" canaries in more than {share:.0%} of replies harm the model: ask for fewer"
                " canaries, or raise max_share."
            )
            number = fit
            by_round = spread_of(fit, None)
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
        planned=float(by_round.sum()) or None,
        replaced=replaced,
        reduced=reduced,
        load=load,
    )
