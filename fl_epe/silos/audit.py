"""`audit_records`: a silo's audit around the training of each of its rounds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fl_epe.archive import error_text
from fl_epe.auditing import LEAST_FOR_NULL, RECORDS, SiloAnswer
from fl_epe.checks import (
    Vector,
    check_count,
    check_probability,
    check_rate,
    raise_invalid,
)
from fl_epe.dp_sgd import PlainDPSGD, SeenSteps, Steps
from fl_epe.mechanism import ServerSGD
from fl_epe.seeding import generator
from fl_epe.silos.lines import answer_of, brief_answer, unmeasured
from fl_epe.silos.local_round import LocalRound
from fl_epe.silos.memory import SiloHistory, SiloMemory, SiloPlan
from fl_epe.silos.places import UNMEASURED, Place, place_of, reason_of
from fl_epe.silos.sent import arrays_of, names_of_sent
from fl_epe.wording import amount, counted, unit_of_records

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

# A child of Flower's logger, so that messages appear with those of Flower.
logger = logging.getLogger("flwr.fl_epe.silos")

# The default number of canaries is this share of the silo's records, so that they are the same
# share of a batch. More than the maximum would hardly make ε of uploads more precise; fewer than
# the minimum do not measure it.
_CANARY_SHARE = 0.1
_MAX_CANARIES = 200
_MIN_CANARIES = 10
# The number of canaries in a plan in which none joins, as a `CanarySet` has at least two.
_UNUSED_CANARIES = 2
# Index of the random stream that samples the canaries of each step.
_COINS = 1
# Number of coordinates of a step whose noise is stored.
_NOISE_COORDINATES = 256


def audit_records(
    where: Any,
    optimizer: DPOptimizer | PlainDPSGD,
    *,
    delta: float,
    num_canaries: int | None = None,
    unobserved: int | None = None,
    sample_rate: float | None = None,
    records_per_person: int = 1,
    share_scores: bool = False,
    share_design: bool = False,
    silo: str = "",
    silos: int | None = None,
    server: ServerSGD = ServerSGD(),  # noqa: B008 - frozen
    seed: int | None = None,
) -> SiloAudit:
    """An audit of a silo's training, which is a context in each round: ``with … as audit:``.

    Canary records take part in the steps of DP-SGD, as in `audit_dp_sgd`. They are scored
    against the silo's uploads, and against each average and the last model that the silo
    receives. Only the `SiloAnswer` leaves the silo, unless an option below allows more.

    Enter the context when the optimizer has the model that the server sent, before the first step.
    Call `SiloAudit.reply` or `SiloAudit.sent` after it. If the audit raises an error, training
    goes on.

    Args:
        where: where the audit is stored between rounds: a Flower ``Context``, which stores it in
            its state; the path of a folder, in which it also outlives the process; or a
            dictionary.
        optimizer: an Opacus ``DPOptimizer``, which may be a new one in each round, or a
            `PlainDPSGD`. Its parameters are those of the model that is sent.
        delta: target δ.
        num_canaries: number of canary records (or persons) that may take part. By default a
            tenth of the silo's records (or persons), at most 200; if a tenth is fewer than ten,
            no canary takes part.
        unobserved: number of canaries that are only scored; by default a quarter of
            ``num_canaries``, and at least 20.
        sample_rate: probability that a record is in a step; by default that of
            ``PrivacyEngine``.
        records_per_person: m, for the ε of a person with m records in the silo, which are
            sampled independently. The canaries are then such persons.
        share_scores: whether the record of the averages leaves the silo with the answer.
        share_design: whether sampling rate, steps, batch size and noise leave the silo. They
            show how many records the silo has.
        silo: the silo's name, for reports.
        silos: number of silos, if they are alike. It is needed for the ε against a partner if
            it is not known how much each silo adds to an average.
        server: how the server updates the model, if it does not add the average to it.
        seed: seed of the canaries and their steps; by default entropy of the operating system.
            Keep it secret until training has ended.

    Raises:
        TypeError: if ``where`` is of another type.
        ValueError: for an argument out of range.
    """
    check_probability("delta", delta)
    check_count("records_per_person", records_per_person)
    if num_canaries is not None and num_canaries < 2:
        raise_invalid("num_canaries", num_canaries, ">= 2")
    if silos is not None and silos < 1:
        raise_invalid("silos", silos, ">= 1")
    if sample_rate is not None:
        check_rate("sample_rate", sample_rate)
    options = {
        "delta": delta,
        "num_canaries": num_canaries,
        "unobserved": unobserved,
        "rate": sample_rate,
        "records": records_per_person,
        "share_scores": share_scores,
        "share_design": share_design,
        "silo": silo,
        "silos": silos,
        "server": server,
        "seed": seed,
    }
    return SiloAudit(place_of(where), optimizer, options)


class SiloAudit:
    """The audit of a silo, from `audit_records`: a context for training, with the results."""

    def __init__(
        self, place: Place, optimizer: Any, options: Mapping[str, Any]
    ) -> None:
        self._place = place
        self._optimizer = optimizer
        self._options = options
        self._memory: SiloMemory | None = None
        self._round: LocalRound | None = None
        self._steps: Steps | None = None
        # The model at the end of the round.
        self._trained: Vector | None = None
        # The history of the memory, once there is one; without a memory no canary could join.
        self._history = SiloHistory()
        # Whether the stored state could be read.
        self._is_loaded = False

    def __enter__(self) -> Self:
        """Note the model that the server sent, and let canaries join from the next step on."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - training goes on
            self._stand_back(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._round is not None:
            try:
                if kind is None:
                    self._end(self._round)
            except Exception as error:  # noqa: BLE001 - training goes on
                self._stand_back(error)
            finally:
                self._round.close()
        if kind is None:
            self._save()

    def _begin(self) -> None:
        self._load()
        try:
            steps = Steps(self._optimizer)
        except TypeError:
            name = type(self._optimizer).__name__
            logger.warning("Audit: %s trains without DP-SGD", name)
            not_private = self._history.not_private
            not_private[name] = not_private.get(name, 0) + 1
            return
        self._steps = steps
        model = steps.model().astype(np.float32)
        if self._memory is None:
            self._memory = SiloMemory(self._plan(steps, len(model)))
            self._memory.history = self._history
        memory = self._memory
        plan = memory.plan
        if len(model) != plan.dim:
            raise ValueError(
                f"the model has {len(model):,} trainable parameters, and had {plan.dim:,}"
            )
        memory.receive(model)
        if memory.steps is None:
            seen_steps = SeenSteps(steps.tensor_sizes, _NOISE_COORDINATES)
        else:
            seen_steps = SeenSteps.of_state(memory.steps)
        num_received = len(memory.history.received)
        rng = generator(plan.seed, _COINS, memory.rounds, num_received)
        self._round = LocalRound(
            steps, seen_steps, plan, rng, self._stand_back
        ).begin()

    def _load(self) -> None:
        """Load the state of earlier rounds, if there is one."""
        state = self._place.load()
        if state is not None and "plan" in state:
            self._memory = SiloMemory.of_state(state)
            self._history = self._memory.history
        elif state is not None:
            self._history = SiloHistory.of_state(state)
        self._is_loaded = True

    def _plan(self, steps: Steps, dim: int) -> SiloPlan:
        """The plan for all rounds."""
        options = dict(self._options)
        rate = options["rate"] or steps.sample_rate
        if rate is None:
            raise ValueError(
                f"{steps.description} does not say how batches are drawn (sample_rate=…)"
            )
        count = options["num_canaries"]
        too_small = ""
        if count is None:
            people = steps.batch_size / rate / options["records"]
            count = min(int(_CANARY_SHARE * people), _MAX_CANARIES)
            if count < _MIN_CANARIES:
                too_small = (
                    "a tenth of its records is too few canaries to measure by"
                )
                count = _UNUSED_CANARIES
        if options["unobserved"] is None:
            options["unobserved"] = max(LEAST_FOR_NULL, count // 4)
        if options["seed"] is None:
            options["seed"] = secrets.randbits(128)
        options |= {
            "dim": dim,
            "rate": rate,
            "num_canaries": count,
            "batch": steps.batch_size,
            "too_small": too_small,
        }
        plan = SiloPlan(**options)
        level = logging.WARNING if too_small else logging.INFO
        logger.log(level, "Audit: %s", _describe(plan))
        return plan

    def _end(self, local_round: LocalRound) -> None:
        memory = self._memory
        steps = self._steps
        if memory is None or steps is None:
            return
        history = memory.history
        upload = local_round.end()
        self._trained = steps.model()
        history.trained.append(local_round.accounted())
        history.accounted = steps.accounted_steps
        reason = local_round.reason
        if reason:
            history.reasons[reason] = history.reasons.get(reason, 0) + 1
        elif upload is not None:
            memory.note_upload(upload)
        memory.steps = local_round.seen.state()

    def _stand_back(self, error: Exception) -> None:
        """Note an error of the audit, in spite of which training goes on."""
        text = reason_of(error)
        logger.warning(
            "Audit: %s; training goes on without it", error_text(error)
        )
        logger.debug("Where it happened", exc_info=error)
        if text not in self._history.stood_back:
            self._history.stood_back.append(text)

    def _save(self) -> None:
        """Store the memory or, without one, the history and the answer."""
        # A stored state that could not be read is not overwritten.
        if not self._is_loaded:
            return
        try:
            if self._memory is None:
                state = self._history.state()
                text = self._unmeasured().to_json().encode()
                state[UNMEASURED] = np.frombuffer(text, np.uint8)
            else:
                state = self._memory.state()
            self._place.save(state)
        except Exception as error:  # noqa: BLE001 - for example, a full disk
            self._stand_back(error)

    def sent(self, arrays: Mapping[str, Any]) -> None:
        """Note what leaves the silo, so that the audit recognises the model when it returns.

        Args:
            arrays: the model as it is sent, or its update, by name.
        """
        if self._memory is None or self._steps is None:
            return
        try:
            trained = self._trained
            if trained is None:
                trained = self._steps.model()
            history = self._memory.history
            history.names, history.unsent = names_of_sent(
                arrays, trained, self._memory.last, self._steps.tensor_sizes
            )
        except Exception as error:  # noqa: BLE001 - the reply is sent in any case
            self._stand_back(error)
        self._save()

    def reply(self, content: Any) -> Any:
        """Add the silo's answer so far to the content of a Flower reply, in place.

        The answer has the number of audited rounds and their faults. ε is in the answer after
        the last model, see `answer_records`.

        Args:
            content: a ``RecordDict`` with the model, or its update, in an ``ArrayRecord``.

        Returns:
            The same ``content``.
        """
        from flwr.app import ConfigRecord

        try:
            self.sent(arrays_of(content))
            memory = self._memory
            if memory is None:
                answer = self._unmeasured()
            else:
                answer = brief_answer(memory)
            content[RECORDS] = ConfigRecord({"answer": answer.to_leave()})
        except Exception as error:  # noqa: BLE001 - the reply is sent in any case
            self._stand_back(error)
        return content

    def answer(self) -> SiloAnswer:
        """The silo's answer so far; `final_answer` gives the answer after the last model."""
        if self._memory is None:
            return self._unmeasured()
        return answer_of(self._memory)

    def _unmeasured(self) -> SiloAnswer:
        """The answer if no canary could join a round."""
        options = self._options
        unit = unit_of_records(options["records"])
        return unmeasured(
            options["silo"], unit, options["delta"], self._history
        )


def _describe(plan: SiloPlan) -> str:
    """The effect of the canaries on a silo's steps, in a sentence."""
    if plan.too_small:
        return f"{plan.too_small}; its steps are checked, and no canary joins them."
    joining = plan.num_canaries * plan.rate * plan.records
    return (
        f"{counted(plan.num_canaries, f'canary {unit_of_records(plan.records)}')}, of which about"
        f" {amount(joining)} join a step of about {plan.batch:g} records:"
        f" {joining / plan.batch:.1%} of it."
    )
