"""Observations of a strategy's aggregation: the replies' shares, the noise, and the metrics."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_epe.checks import Vector
from fl_epe.flower.audited_strategy import Hook
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import entries_of, readable, weights
from fl_epe.flower.round_state import Aggregation, RoundState, Shares
from fl_epe.flower.wrapped import Wrapped
from fl_epe.hooks import stand_in
from fl_epe.noise import NoiseHealth

# The approximate number of entries of a model that are compared.
_COMPARED_ENTRIES = 64
# The largest rounding error of a mean of n numbers, divided by √n rounding errors of one number.
_MAX_ROUNDINGS = 8
# Noise is checked if the model's rounding error is at most this share of the noise's standard
# deviation.
_MAX_ROUNDING_SHARE = 2.0**-12


def shares_of(
    aggregation: Aggregation,
    key: str,
    layout: Layout,
    preferred: str,
    used: Collection[int] | None = None,
) -> tuple[str, Shares] | None:
    """The way in which replies were averaged, and their shares; ``None`` if they were not.

    The way is "weighted" by the metric ``key``, or "equal". The average of some entries in
    either way is compared with the aggregated arrays, up to rounding.

    Args:
        aggregation: the replies and the aggregated arrays.
        key: the name of the metric.
        layout: the layout of the model.
        preferred: the preferred name of arrays, see `model_record`.
        used: the replies that the strategy used, with keys as in `Shares`; ``None`` if that is
            not known.
    """
    replies = aggregation.replies
    if not replies or not aggregation.arrays:
        return None
    step = max(1, layout.dim // _COMPARED_ENTRIES)
    average = layout.flatten(aggregation.arrays, step).astype(np.float64)
    models = entries_of(replies, layout, preferred, step, len(average))
    is_readable = np.isfinite(models).all(axis=1)
    largest = np.abs(models[is_readable]).max(axis=0, initial=0.0)
    magnitude = np.maximum(largest, np.abs(average))
    error = _MAX_ROUNDINGS * aggregation.eps * np.sqrt(len(models)) * magnitude
    contents = [id(reply.content) for reply in replies]
    is_used = np.array(
        [used is None or content in used for content in contents]
    )
    is_averaged = is_readable & is_used
    ways = {"weighted": weights(replies, key), "equal": [1.0] * len(contents)}
    for way, values in ways.items():
        shares = np.where(is_averaged, values, 0.0)
        if shares.sum() > 0:
            shares = shares / shares.sum()
            difference = average - shares[is_averaged] @ models[is_averaged]
            if np.all(np.abs(difference) <= error):
                return way, dict(zip(contents, shares.tolist(), strict=True))
    return None


def averaging_of(
    wrapped: Wrapped, current: RoundState
) -> tuple[str, Shares | None]:
    """The way in which replies were averaged, and their shares; "" and ``None`` if not known."""
    key = wrapped.weighted_by()
    call = current.call
    # Replies may lack weights that are numbers, or arrays that fit.
    with contextlib.suppress(ValueError, TypeError, ZeroDivisionError):
        if wrapped.averages:
            used_weights = {
                id(reply.content): weight
                for reply, weight in zip(
                    call.replies, weights(call.replies, key), strict=True
                )
                if call.used is None or id(reply.content) in call.used
            }
            total = sum(used_weights.values())
            return "weighted", {
                content: weight / total
                for content, weight in used_weights.items()
            }
        if call.innermost is not None and wrapped.plain_layers:
            preferred = wrapped.arrays_key()
            averaging = shares_of(
                call.innermost, key, current.layout, preferred, call.used
            )
            if averaging is not None:
                return averaging
    return "", None


def note_noise(health: NoiseHealth, current: RoundState, theta: Vector) -> None:
    """Add the noise of a round to ``health``.

    It is the model ``theta`` minus the result of the innermost strategy, if that was observed.
    """
    noise_std = current.call.noise_std
    innermost = current.call.innermost
    if not noise_std or innermost is None or not innermost.arrays:
        return
    without_noise = current.layout.flatten(innermost.arrays)
    largest = np.abs(without_noise).max()
    if innermost.eps * largest > _MAX_ROUNDING_SHARE * noise_std:
        health.skip(
            "the noise is hardly larger than the rounding of the model's numbers"
        )
        return
    noise = np.subtract(theta, without_noise, out=without_noise)
    health.add(current.layout.split(noise), noise_std)


@contextlib.contextmanager
def watch_aggregation(strategy: Strategy) -> Iterator[Aggregation]:
    """In this context, observe the aggregation of a strategy that another one wraps."""
    aggregation = Aggregation()
    aggregate = strategy.aggregate_train

    def watched(server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        result = aggregate(server_round, replies)
        # The caller gets a result of any form.
        with contextlib.suppress(Exception):
            aggregation.replies = readable(replies)
            aggregation.arrays = result[0]
        return result

    with stand_in(strategy, "aggregate_train", Hook(watched, aggregate)):
        yield aggregation


@contextlib.contextmanager
def real_metrics_only(
    base: Strategy, synthetic: Sequence[Message]
) -> Iterator[set[int]]:
    """In this context, ``base`` aggregates the metrics of all replies but the synthetic ones.

    Yields:
        A set, to which the aggregation adds the ``id`` of the content of each reply.
    """
    aggregate = getattr(base, "train_metrics_aggr_fn", None)
    used: set[int] = set()
    if aggregate is None:
        yield used
        return
    ignored = {id(reply.content) for reply in synthetic}

    def only_real(records: list[RecordDict], key: str) -> Any:
        used.update(id(record) for record in records)
        return aggregate(
            [record for record in records if id(record) not in ignored], key
        )

    with stand_in(base, "train_metrics_aggr_fn", Hook(only_real, aggregate)):
        yield used
