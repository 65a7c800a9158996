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
        """How a client takes part in a run; ``None`` if none was asked."""
        rate = self.clients / max(1, self.nodes or self.clients)
        return ParticipationLaw(rounds, rate * rounds) if rate else None

    @property
    def most(self) -> float:
        """Canaries among the replies of a round, at most."""
        replies = self.clients - self.replaced + self.canaries
        return self.canaries / replies if replies else 0.0

    def sentences(self) -> list[str]:
        """The plan in plain English."""
        lines = [] if self.load is None else self.load.sentences()
        if self.load is None and self.canaries:
            lines = [
                f"Up to {self.canaries} canaries a round, beside {self.clients - self.replaced} of"
                f" {self.clients} clients: {self.most:.0%} of the replies."
            ]
        if self.replaced:
            lines.append(
                f"Up to {self.replaced} of {self.clients} clients a round are not asked, as"
                " canaries answer in their place."
            )
        alone = (
            f"Canaries leave alone: {', '.join(self.left_out)}."
            if self.left_out
            else ""
        )
        return [*lines, *filter(None, (self.reduced, alone))]


def canaries_that_fit(share: float, clients: int, room: float) -> float:
    """How many canaries a round may have, on average.

    Args:
        share: largest of the replies.
        clients: whom the strategy asks.
        room: how many replies can be added to theirs; beyond that canaries replace clients. Who
            set a finite number asked for canaries in it, up to half of a round.
    """
    if share == 1:
        return math.inf
    most = min(share / (1 - share) * clients, share * (clients + room))
    return max(most, min(room, clients) if math.isfinite(room) else 0.0)


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
    places, often = number, settings.participations or 1.0
    if load is not None:
        places = load.places
        often = int(places * load.place_participations + _ROUNDING) / max(1, places)
    if not places or not often:
        return np.zeros((rounds, 0), bool)
    rng = generator(settings.canary_seed, _SCHEDULE)
    first = 1 if replaces and rounds > 1 else 0
    schedule = ShuffledEpochs(rounds - first, min(often, rounds - first))
    here = np.pad(presence(schedule, places, rng), ((first, 0), (0, 0)))
    return here if load is None else load.presence(here, rng)


def _load(
    settings: CanaryAuditSettings,
    wrapped: Wrapped,
    rounds: int,
    clients: int,
    nodes: int | None,
) -> CanaryLoad:
    """The ladder beside the clients of the first round; arguments as of `make_plan`."""
    nodes = nodes or clients
    often = settings.participations or rounds * clients / nodes
    per_place = rounds / often  # clients whom the strategy asks once for each place
    z = settings.noise_multiplier
    return canary_load(
        max(1, round(clients * per_place)),
        rounds=rounds,
        participations=often,
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
    """No more canaries than fit beside the clients of the first round, or none below two.

    Args:
        settings: of the audit.
        wrapped: the strategy.
        rounds: of the run.
        clients: whom the strategy asks in the first round.
        nodes: from how many they were chosen; ``None`` if not known.
    """
    number, share, reduced, load = (
        settings.num_canaries,
        settings.largest_share,
        "",
        None,
    )
    room = wrapped.room(clients)
    spread_of = functools.partial(spread, settings, rounds, replaces=room < 1)
    if number is None:
        load = _load(settings, wrapped, rounds, clients, nodes)
        here = spread_of(0, load)
        number = here.shape[1]
    else:
        here = spread_of(number, None)
        fits = canaries_that_fit(share, clients, room)
        if (total := here.sum()) > rounds * (fits + _ROUNDING):
            fit = int((fits + _ROUNDING) * rounds * number / total)
            fit = fit if fit >= 2 else 0
            reduced = (
                f"Of {number} canaries {fit} fit into {rounds} rounds with {clients} clients, as "
                f"more than {share:.0%} of replies harm the model: ask for as many, or raise "
                "max_share."
            )
            number, here = fit, spread_of(fit, None)
    most, planned = int(here.sum(axis=1).max(initial=0)), float(here.sum()) or None
    replaced = int(min(max(most - room, 0), clients))
    if load is not None and number and replaced == clients:
        reduced = (
            "Canaries would answer in the place of every client of a round: ask more clients, or"
            " raise num_sampled_clients of the DP wrapper."
        )
        return AuditPlan(0, clients, nodes, reduced=reduced)
    return AuditPlan(
        number, clients, nodes, most, planned, replaced, reduced=reduced, load=load
    )
