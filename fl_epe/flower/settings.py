"""The arguments of `CanaryAudit`: what each means, its default, and which go together."""

import dataclasses
import glob
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fl_epe.auditing import LEAST_FOR_NULL, SHARE
from fl_epe.canaries import CanaryKind
from fl_epe.checks import (
    check_noise_multiplier,
    check_positive,
    check_rate,
    checked_type,
    raise_invalid,
)
from fl_epe.flower.client_canaries import ClientCanaries
from fl_epe.flower.layout import ReplyKind
from fl_epe.loggers import RunLogger
from fl_epe.noise import LocalDp

_MOST = 1000
_SHARE_OF_CLIENTS = 0.5  # of a round, who answer with canaries
_OF_MANY_TYPES = ("clients", "checkpoint", "client_noise", "log_to")
_OF_SERVER_CANARIES = ("participations", "num_examples", "replies")


class SettingsError(ValueError):
    """An argument of the audit does not fit the run; raised before the first round."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAuditSettings:
    """What an audit is asked for: the keyword arguments of `CanaryAudit`.

    Attributes:
        delta: target δ.
        num_canaries: canaries that take part, each ``participations`` times. By default as many
            as ``max_share`` allows, on a ladder up to as many rounds as a client's, see
            `fl_epe.auditing.recorder.canary_load`: decided in the first round, by who is asked
            in it and how many nodes there are. With ``clients`` all clients that it names, at
            most 1,000.
        seed: of the canaries. Fresh from the operating system by default, and a deployment needs
            that: anyone who guesses it can subtract the canaries.
        unobserved: canaries that are scored and never take part, whose scores say how wide the null
            is. By default as many as take part, and at least 20.
        participations: how often a canary takes part, at most once in a round; by default once
            with ``num_canaries``. On a ladder how often a client does, by default in as many
            rounds as the first one's share of the nodes says.
        rounds: of the run; needed where ``start`` has no ``num_rounds`` and does not call Flower's
            own, is called more than once, or has a single round.
        clients: let clients answer through `canary_mod`, in place of synthetic replies: a share in
            (0, 1], chosen by hashing with the seed, or a list. They answer with their canary
            whenever the strategy asks them, from the second round on.
        identity: what stays the same about a client (a partition id), from its node id; for
            ``clients``, and to count how often a client took part.
        num_examples: weight of a canary in averages; by default the median of the round's real
            replies, or less where canaries would be more than their share of the round.
        canary_norm: norm of a canary's update where nothing clips; without the noise, where
            clients add some themselves.
        client_noise: what clients promise, who clip their update and add noise to it by themselves,
            such as by Flower's ``LocalDpMod``: each reply is tested for it, and the report names
            nodes. What the numbers amount to is logged before the first round.
        noise_multiplier: z of a strategy that the audit does not know, for the analytical ε.
        leave_out: names or patterns of arrays that canaries leave alone, such as
            ``"*.running_mean"``, and what clients keep. Integer and 0-d arrays always are, and
            what the first replies that move the model (nine of them, drawn at random) show to be no
            free parameters: arrays that none changes, that are the same in all, or that have no
            negative entry in the model and in all replies, such as variances. With ``clients`` that
            round has no canaries. What no reply moves in a later round, canaries do not either.
        replies: "model" or "update", the difference from the model; by default the first replies
            show which, and where they do not no canary takes part.
        max_share: largest share of replies that canaries may have, on average over the run. By
            default 0.1, as more harms the model, and up to a sixth where fewer than ten clients are
            asked, the noise is known, and ε could not be told; with ``clients`` 0.5, in each round.
            Where there would be more, fewer canaries than ``num_canaries`` take part, and a warning
            says how many: at least one a round if that is at most twice the share, and up to half
            of a round where ``num_sampled_clients`` of a DP wrapper has room for them.
        checkpoint: a folder in which the audit is kept after every round, so that a server app
            that was killed goes on with it: start again with the same arguments, the model after
            some round as initial arrays, and all rounds or those that are left as ``num_rounds``.
            The model says after which round; later ones, which are not in it, are forgotten.
            ``seed=None`` takes the seed that is kept, other arguments must be as they were. With
            another model it is another run: what is in the folder is moved aside, and a new audit
            begins. One folder for one run at a time.
        canary_kind: "rotation" (the default) or "sphere", see `CanarySet`.
        enabled: whether to audit at all; if not, the strategy runs as if there were no audit, and
            the report says that it was off.
        unit: what one client is, such as "hospital"; the report says whose privacy it measures.
        log_to: where to log each round's metrics and the answer: "tensorboard", "mlflow", "wandb",
            or a list of names and objects, see `fl_epe.loggers`. What they keep is in the folder
            ``checkpoint``, or else in one of the run under ``runs``.
        canary_seed: ``seed``, or one that was drawn here.

    Raises:
        ArgumentError: a `ValueError`, for an argument out of range, or that goes with no other.
    """

    delta: float
    num_canaries: int | None = None
    seed: int | None = dataclasses.field(default=None, repr=False)
    unobserved: int | None = None
    participations: float | None = None
    rounds: int | None = None
    clients: float | Collection[int] | None = None
    identity: Callable[[int], int] | None = None
    num_examples: float | None = None
    canary_norm: float | None = None
    client_noise: LocalDp | None = None
    noise_multiplier: float | None = None
    leave_out: Sequence[str] = ()
    replies: ReplyKind | None = None
    max_share: float | None = None
    checkpoint: str | Path | None = None
    canary_kind: CanaryKind = "rotation"
    enabled: bool = True
    unit: str = "client (node)"
    log_to: str | Sequence[str | RunLogger] = ()
    canary_seed: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        canary_seed = secrets.randbits(128) if self.seed is None else self.seed
        object.__setattr__(self, "canary_seed", canary_seed)
        object.__setattr__(self, "leave_out", tuple(self.leave_out))
        self._check()

    def _check(self) -> None:
        # `RunAuditor` checks delta and unobserved.
        for field in dataclasses.fields(self):
            if field.name not in _OF_MANY_TYPES:
                checked_type(
                    field.name,
                    getattr(self, field.name),
                    field.type,
                    largest=math.inf,
                )
        for name, least in {"num_canaries": 2, "seed": 0, "rounds": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise_invalid(name, value, f">= {least}")
        for name in ("num_examples", "canary_norm", "participations"):
            value = getattr(self, name)
            if value is not None:
                check_positive(name, value)
        if not isinstance(self.client_noise, LocalDp | None):
            raise_invalid("client_noise", self.client_noise, "to be a LocalDp")
        if self.noise_multiplier is not None:
            check_noise_multiplier("noise_multiplier", self.noise_multiplier)
        check_rate("max_share", self.largest_share)
        if self.clients is None:
            return
        for name in _OF_SERVER_CANARIES:
            value = getattr(self, name)
            if value is not None:
                raise_invalid(
                    name,
                    value,
                    "to be left out with clients, who answer whenever they are asked, with their"
                    " own weight",
                )
        self.client_canaries(self.count_of_clients(_MOST), {})

    @property
    def largest_share(self) -> float:
        """``max_share``, or its default."""
        if self.max_share is not None:
            return self.max_share
        if self.clients is None:
            return SHARE
        return _SHARE_OF_CLIENTS

    def unobserved_beside(self, canaries: int) -> int:
        """How many canaries are only scored, where so many may take part."""
        if self.unobserved is not None:
            return self.unobserved
        return max(LEAST_FOR_NULL, canaries)

    def count_of_clients(self, nodes: int) -> int:
        """How many of so many nodes answer with a canary at most."""
        count = nodes
        if isinstance(self.clients, Collection):
            count = len(self.clients)
        return self.num_canaries or max(2, min(count, _MOST))

    def client_canaries(
        self, count: int, numbers: dict[int, int], left_out: Sequence[str] = ()
    ) -> ClientCanaries:
        """Which clients answer with which of ``count`` canaries; some may be known.

        Args:
            count: of the canaries.
            numbers: of the canaries that are known, by their clients.
            left_out: names of arrays that canaries leave alone, beside those of the settings.

        Raises:
            ArgumentError: for a share outside (0, 1], or an empty or repeating list.
        """
        assert self.clients is not None  # noqa: S101 - else the server makes the replies
        return ClientCanaries(
            count,
            self.unobserved_beside(count),
            self.canary_seed,
            self.clients,
            self.identity,
            (*self.leave_out, *map(glob.escape, left_out)),
            acknowledge=True,
            kind=self.canary_kind,
            numbers=numbers,
        )
