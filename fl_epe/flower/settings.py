"""The arguments of `CanaryAudit`: their meaning, their defaults, and their checks."""

import dataclasses
import glob
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fl_epe.auditing import CANARY_SHARE, LEAST_FOR_NULL
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

# The default of the largest number of clients that answer with a canary.
_MAX_CLIENTS = 1000
# The default of ``max_share`` if clients answer with canaries.
_SHARE_OF_CLIENTS = 0.5
# The arguments whose types are not checked by their annotations.
_OF_MANY_TYPES = ("clients", "checkpoint", "client_noise", "log_to")
# The arguments that have no meaning if clients answer with canaries.
_OF_SERVER_CANARIES = ("participations", "num_examples", "replies")


class SettingsError(ValueError):
    """An argument of the audit does not fit the run; raised before the first round."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAuditSettings:
    """The settings of an audit: the keyword arguments of `CanaryAudit`.

    Attributes:
        delta: the target δ.
        num_canaries: the number of canaries that take part, each ``participations`` times. By
            default, the first round decides: as many as ``max_share`` allows, with different
            numbers of rounds up to a client's, see `fl_epe.auditing.recorder.canary_load`. This
            depends on the clients that are asked and the number of nodes. With ``clients``, it
            is the number of these clients, at most 1,000.
        seed: the seed of the canaries (default: the operating system's entropy). A deployment
            needs the default, as anyone who guesses the seed can subtract the canaries.
        unobserved: the number of canaries that are scored but never take part. Their scores
            estimate the null distribution. By default, as many as take part, and at least 20.
        participations: the number of rounds in which a canary takes part. With
            ``num_canaries``, the default is 1. Without ``num_canaries``, this is the number of
            rounds of a client; by default, it follows from the first round's share of the nodes.
        rounds: the number of rounds of the run. It is needed if ``start`` has no ``num_rounds``
            and does not call Flower's own ``start``, is called more than once, or has a single
            round.
        clients: the clients that answer with canaries through `canary_mod`, instead of
            synthetic replies: a share in (0, 1], which is selected by hashing with the seed, or
            a list. They answer with their canary whenever the strategy asks them, from the
            second round on.
        identity: a function from a node id to a lasting id of the client (such as a partition
            id), for ``clients``, and to count the rounds of a client.
        num_examples: the weight of a canary in averages. By default, the median of the round's
            real replies, or less if canaries would exceed their share of the round.
        canary_norm: the norm of a canary's update without clipping. If clients add noise
            themselves, this is the norm without the noise.
        client_noise: the claim of clients that clip their update and add noise to it
            themselves, such as with Flower's ``LocalDpMod``. Each reply is tested for this
            noise, and the report names nodes. The resulting ε is logged before the first round.
        noise_multiplier: the noise multiplier z of a strategy that the audit does not know, for
            the analytical ε.
        leave_out: names or patterns of arrays that canaries do not move, such as
            ``"*.running_mean"``, and of arrays that clients do not send. Canaries never move
            integer and 0-d arrays, nor arrays that are no free parameters as far as the first
            replies show (nine replies that move the model, drawn at random): arrays that no
            reply changes, that are the same in all replies, or that have no negative entry in
            the model and in all replies, such as variances. With ``clients``, that round has no
            canaries. If no reply moves an array in a later round, canaries do not move it in
            that round either.
        replies: "model" or "update", the difference from the model. By default, the first
            replies show which; if they do not, no canary takes part.
        max_share: the largest share of replies that canaries may have, on average over the run.
            The default is 0.1, as more harms the model, and up to a sixth if fewer than ten
            clients are asked, the noise is known, and ε could not be measured otherwise. With
            ``clients``, it is 0.5 in each round. If the share would be exceeded, fewer canaries
            than ``num_canaries`` take part, and a warning says how many. The share of a single
            round may be larger, such as that of one canary beside four clients. If
            ``num_sampled_clients`` of a DP wrapper has room for more canaries, they may be up
            to half of a round.
        checkpoint: a folder in which the audit is saved after every round, so that a server app
            that was killed can continue it. Start again with the same arguments, with the model
            after some round as initial arrays, and with all rounds or the remaining ones as
            ``num_rounds``. The model shows the round; later rounds, which are not in the model,
            are removed. ``seed=None`` uses the saved seed. Arguments that determine the result must
            not change.
            Another model means another run: the content of the folder is renamed, and a new
            audit begins. Only one run at a time can use a folder.
        canary_kind: "rotation" (the default) or "sphere", see `CanarySet`.
        enabled: whether the run is audited. If not, the strategy runs as without an audit, and
            the report says that the audit was off.
        unit: the kind of a client, such as "hospital"; the report says whose privacy it
            measures.
        log_to: the loggers of each round's metrics and of the result: "tensorboard", "mlflow",
            "wandb", or a list of names and objects, see `fl_epe.loggers`. Their files are in
            the folder ``checkpoint``, or else in a folder of the run under ``runs``.
        canary_seed: the value of ``seed``, or a seed that was drawn here.

    Raises:
        ArgumentError: a `ValueError`, for an argument out of range or without the arguments
            that it needs.
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
        # `RunAuditor` checks the ranges of ``delta`` and ``unobserved``.
        for field in dataclasses.fields(self):
            if field.name not in _OF_MANY_TYPES:
                checked_type(
                    field.name,
                    getattr(self, field.name),
                    field.type,
                    largest=math.inf,
                )
        minima = {"num_canaries": 2, "seed": 0, "rounds": 1}
        for name, minimum in minima.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise_invalid(name, value, f">= {minimum}")
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
        self.client_canaries(self.count_of_clients(_MAX_CLIENTS), {})

    @property
    def largest_share(self) -> float:
        """``max_share``, or its default."""
        if self.max_share is not None:
            return self.max_share
        if self.clients is None:
            return CANARY_SHARE
        return _SHARE_OF_CLIENTS

    def unobserved_beside(self, canaries: int) -> int:
        """The number of canaries that are only scored, if ``canaries`` may take part."""
        if self.unobserved is not None:
            return self.unobserved
        return max(LEAST_FOR_NULL, canaries)

    def count_of_clients(self, nodes: int) -> int:
        """The number of canaries if clients answer with them, and there are ``nodes`` nodes."""
        count = nodes
        if isinstance(self.clients, Collection):
            count = len(self.clients)
        return self.num_canaries or max(2, min(count, _MAX_CLIENTS))

    def client_canaries(
        self, count: int, numbers: dict[int, int], left_out: Sequence[str] = ()
    ) -> ClientCanaries:
        """The clients that answer with ``count`` canaries, some of which may be known.

        Args:
            count: the number of canaries.
            numbers: the indices of the known canaries by client; further ones are added.
            left_out: the names of arrays that canaries do not move, besides those of the
                settings.

        Raises:
            ArgumentError: for a share outside (0, 1], or a list that is empty, repeats a client or
                has more than ``count`` of them.
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
