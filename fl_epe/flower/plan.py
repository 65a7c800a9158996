"""The plan of an audit: how many canaries take part and when, as decided in the first round."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from fl_epe.auditing import MOST_SHARE, CanaryLoad, canary_load
from fl_epe.checks import Booleans
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import ParticipationLaw, ShuffledEpochs, presence
from fl_epe.seeding import generator

_SCHEDULE = 0  # stream of an audit's own choices
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """The audit's share of the rounds and its price, as decided in the first round.

    Attributes:
        number: how many canaries may take part; fewer than asked for if they do not fit.
        clients: real clients in the first round, those that canaries replace included.
        nodes: from how many they were chosen; ``None`` if not known.
        canaries: most of them in a round; 0 if only the clients know.
        planned: participations of all canaries together; ``None`` if not known.
        replaced: how many clients are not asked in a round, as canaries take their place.
        left_out: names of arrays that canaries leave alone.
        reduced: why fewer canaries take part than were asked for; "" if all do.
        load: the ladder that the audit chose; ``None`` if the number of canaries was given.
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
        lines = [] if self.load is None else self.load.sentences()
        if self.load is None and self.canaries:
            lines = [
                f"Up to {self.canaries} canaries a round, beside {self.clients - self.replaced} of"
                f" {self.clients} clients: {self.largest_share:.0%} of the replies."
            ]
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
    """How many canaries a round may have, on average.

    Args:
        share: largest of the replies.
        clients: whom the strategy asks.
        room: how many replies can be added to theirs; beyond that canaries replace clients. A user
            who set a finite number wants canaries in it, up to half of a round.
    """
    if share == 1:
        return math.inf
    by_share = min(share / (1 - share) * clients, share * (clients + room))
    if math.isfinite(room):
        return max(by_share, min(room, clients))
    return by_share


def check_rounds(settings: CanaryAuditSettings, rounds: int | None) -> int:
    """The rounds of a run, over which canaries that the server makes are spread.

    Raises:
        ValueError: if they are not known, or the settings' participations do not fit into them.
    """
    if rounds is None:
        raise ValueError(
            "Expected rounds=… in CanaryAudit, those of all starts together: start() does not"
            " tell them, or has a single round, which may be one of many (pass rounds=1, if"
            " that is all)."
        )
    ShuffledEpochs(rounds, settings.participations or 1.0)  # raises
    return rounds


def spread(
    settings: CanaryAuditSettings,
    rounds: int,
    number: int,
    load: CanaryLoad | None,
    *,
    replaces: bool,
) -> Booleans:
    """The rounds of each of so many canaries, or of those of a load, ``(T, k)``.

    Where a canary ``replaces`` a client none is in the first round, unless it is the only one: what
    clients weigh is not known before.
    """
    places = number
    participations = settings.participations or 1.0
    if load is not None:
        places = load.places
        in_all = int(places * load.place_participations + _ROUNDING)
        participations = in_all / max(1, places)
    if not places or not participations:
        return np.zeros((rounds, 0), bool)
    rng = generator(settings.canary_seed, _SCHEDULE)
    first = 1 if replaces and rounds > 1 else 0
    later_rounds = rounds - first
    schedule = ShuffledEpochs(later_rounds, min(participations, later_rounds))
    by_place = np.pad(presence(schedule, places, rng), ((first, 0), (0, 0)))
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
    """The ladder beside the clients of the first round; arguments as of `make_plan`."""
    nodes = nodes or clients
    participations = settings.participations or rounds * clients / nodes
    # Clients whom the strategy asks once for each place.
    per_place = rounds / participations
    z = settings.noise_multiplier
    return canary_load(
        max(1, round(clients * per_place)),
        rounds=rounds,
        participations=participations,
        delta=settings.delta,
        noise_multiplier=wrapped.noise_multipliers()[0] if z is None else z,
        share=settings.largest_share,
        share_name="max_share",
        share_of_few=MOST_SHARE if settings.max_share is None else None,
        replies=(clients + wrapped.room(clients)) * per_place,
    )


def make_plan(
    settings: CanaryAuditSettings,
    wrapped: Wrapped,
    rounds: int,
    clients: int,
    nodes: int | None,
) -> AuditPlan:
    """Plan as many canaries as fit beside the clients of the first round; none if one fits.

    Args:
        settings: of the audit.
        wrapped: the strategy.
        rounds: of the run.
        clients: whom the strategy asks in the first round.
        nodes: from how many they were chosen; ``None`` if not known.
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
        a_round = canaries_that_fit(share, clients, room) + _ROUNDING
        total = by_round.sum()
        if total > rounds * a_round:
            fit = int(a_round * rounds * number / total)
            fit = fit if fit >= 2 else 0
            reduced = (
                f"Of {number} canaries {fit} fit into {rounds} rounds with {clients} clients, as "
                f"more than {share:.0%} of replies harm the model: ask for as many, or raise "
                "max_share."
            )
            number = fit
            by_round = spread_of(fit, None)
    canaries = int(by_round.sum(axis=1).max(initial=0))
    replaced = int(min(max(canaries - room, 0), clients))
    if load is not None and number and replaced == clients:
        reduced = (
            "Canaries would answer in the place of every client of a round: ask more clients, or"
            " raise num_sampled_clients of the DP wrapper."
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
