"""`audit_records`: a silo's audit around the training of each of its rounds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fl_epe.archive import error_text
from fl_epe.auditing import LEAST_FOR_NULL, RECORDS, SiloAnswer
from fl_epe.canaries import CanarySet
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
from fl_epe.silos.memory import SiloMemory, SiloPlan, Told
from fl_epe.silos.places import UNMEASURED, Place, place_of, reason_of
from fl_epe.silos.sent import arrays_of, names_of_sent
from fl_epe.wording import amount, counted, unit_of_records

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

logger = logging.getLogger("flwr.fl_epe.silos")  # shown where Flower's own messages are

_SHARE = 0.1  # of the silo's records, and so of a batch
_ENOUGH = 200  # canaries, by which ε of uploads is known to some percent
_LEAST = 10
_COINS = 1  # stream of the canaries' steps, by round
_KEPT = 256  # coordinates of the noise of a step


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
    """An audit to put around a silo's training in each round: ``with … as audit:``, and train.

    Canary records take part in the steps of DP-SGD, as `audit_dp_sgd` lets them. They are scored
    against what the silo uploads, and against each average and the last model that it is sent.
    Nothing but the `SiloAnswer` leaves the silo, unless it says so.

    Call it with the model that the server sent, before the first step; and `SiloAudit.reply` or
    `SiloAudit.sent` afterwards. Whatever goes wrong inside, training goes on.

    Args:
        where: what outlives a round: a Flower ``Context``, in whose state the audit is kept; the
            path of a folder, which outlives the process too; or a dictionary.
        optimizer: an Opacus ``DPOptimizer``, made anew in each round or kept; or a `PlainDPSGD`.
            Its parameters are those of the model that is sent.
        delta: target δ.
        num_canaries: canary records (or persons) that may take part. By default a tenth of the
            silo's records, at most 200; none where that is fewer than ten.
        unobserved: canaries that are only scored; by default a quarter of the others.
        sample_rate: probability of a record to be in a step; by default that which
            ``PrivacyEngine`` told its accountant.
        records_per_person: m, for the ε of a person with m records in the silo, each of which is
            drawn by a coin of its own. The canaries are then such persons.
        share_scores: whether the record of the averages leaves the silo with the answer.
        share_design: whether sampling rate, steps, batch and noise do. They tell how many records
            the silo has.
        silo: its name, for reports.
        silos: how many there are, if they are alike: for the ε against a partner where no server
            says how much each of them adds to an average.
        server: what the server does with an average, if not to move the model by it.
        seed: of the canaries and their steps; the operating system's entropy by default. Keep it
            secret until training has ended.

    Raises:
        TypeError: if ``where`` is none of these.
        ValueError: for an argument out of range.
    """
    check_probability("delta", delta)
    check_count("records_per_person", records_per_person)
    for name, value, least in (("num_canaries", num_canaries, 2), ("silos", silos, 1)):
        if value is not None and value < least:
            raise_invalid(name, value, f">= {least}")
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
    """What `audit_records` returns: a context for a round's training, and then its results."""

    def __init__(
        self, place: Place, optimizer: Any, options: Mapping[str, Any]
    ) -> None:
        self._place, self._given, self._options = place, optimizer, options
        self._memory: SiloMemory | None = None
        self._round: LocalRound | None = None
        self._steps: Steps | None = None
        self._trained: Vector | None = None  # the model at the end of the round
        self._told = Told()  # without a memory, of rounds that no canary could join
        self._is_loaded = False

    def __enter__(self) -> Self:
        """Take in the model that the server sent, and let canaries join from the next step on."""
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
        state = self._place.load()
        if state is not None and "plan" in state:
            self._memory = SiloMemory.of_state(state)
            self._told = self._memory.told
        elif state is not None:
            self._told = Told.of_state(state)
        self._is_loaded = True
        try:
            self._steps = Steps(self._given)
        except TypeError:
            self._note_not_private(type(self._given).__name__)
            return
        model = self._steps.model().astype(np.float32)
        if self._memory is None:
            self._memory = SiloMemory(self._plan(self._steps, len(model)))
            self._memory.told = self._told
        memory, plan = self._memory, self._memory.plan
        if len(model) != plan.dim:
            raise ValueError(
                f"the model has {len(model):,} trainable parameters, and had {plan.dim:,}"
            )
        memory.receive(model)
        seen = (
            SeenSteps(self._steps.tensor_sizes, _KEPT)
            if memory.steps is None
            else SeenSteps.of_state(memory.steps)
        )
        rng = generator(plan.seed, _COINS, memory.rounds, len(memory.told.received))
        canaries = CanarySet(plan.dim, plan.num_canaries + plan.unobserved, plan.seed)
        self._round = LocalRound(
            self._steps,
            seen,
            plan.rate,
            0 if plan.too_small else plan.records,
            rng,
            canaries,
            plan.num_canaries,
            self._stand_back,
        ).begin()

    def _note_not_private(self, name: str) -> None:
        logger.warning("Audit: %s trains without DP-SGD", name)
        counts = self._told.not_private
        counts[name] = counts.get(name, 0) + 1

    def _plan(self, steps: Steps, dim: int) -> SiloPlan:
        """What to do in all rounds."""
        options = dict(self._options)
        rate = options["rate"] or steps.sample_rate
        if rate is None:
            raise ValueError(
                f"{steps.description} does not say how batches are drawn (sample_rate=…)"
            )
        people = steps.batch_size / rate / options["records"]
        count = options["num_canaries"]
        too_small = ""
        if count is None:
            count = min(int(_SHARE * people), _ENOUGH)
            if count < _LEAST:
                too_small = "a tenth of its records is too few canaries to measure by"
                count = 2  # which never join
        unobserved = options["unobserved"]
        if unobserved is None:
            unobserved = max(LEAST_FOR_NULL, count // 4)
        options |= {
            "dim": dim,
            "rate": rate,
            "num_canaries": count,
            "unobserved": unobserved,
            "batch": steps.batch_size,
            "too_small": too_small,
            "seed": secrets.randbits(128)
            if options["seed"] is None
            else options["seed"],
        }
        plan = SiloPlan(**options)
        logger.log(
            logging.WARNING if too_small else logging.INFO, "Audit: %s", describe(plan)
        )
        return plan

    def _end(self, local: LocalRound) -> None:
        memory, steps = self._memory, self._steps
        if memory is None or steps is None:
            return
        told = memory.told
        upload = local.end()
        self._trained = steps.model()
        told.trained.append(local.accounted())
        told.accounted = steps.accounted_steps
        if local.reason:
            told.reasons[local.reason] = told.reasons.get(local.reason, 0) + 1
        elif upload is not None:
            memory.note_upload(upload)
        memory.steps = local.seen.state()

    def _stand_back(self, error: Exception) -> None:
        text = reason_of(error)
        logger.warning("Audit: %s; training goes on without it", error_text(error))
        logger.debug("Where it happened", exc_info=error)
        if text not in self._told.stood_back:
            self._told.stood_back.append(text)

    def _save(self) -> None:
        if not self._is_loaded:  # what cannot be read is left as it is
            return
        try:
            if self._memory is None:
                said = self._unmeasured().to_json().encode()
                state = {
                    **self._told.state(),
                    UNMEASURED: np.frombuffer(said, np.uint8),
                }
            else:
                state = self._memory.state()
            self._place.save(state)
        except Exception as error:  # noqa: BLE001 - a full disk, for one
            self._stand_back(error)

    def sent(self, arrays: Mapping[str, Any]) -> None:
        """Note what leaves the silo, so that the audit knows the model again when it is sent back.

        Args:
            arrays: the model as it is sent, or its update, by name.
        """
        if self._memory is None or self._steps is None:
            return
        try:
            told = self._memory.told
            trained = self._steps.model() if self._trained is None else self._trained
            told.names, told.unsent = names_of_sent(
                arrays, trained, self._memory.last, self._steps.tensor_sizes
            )
        except Exception as error:  # noqa: BLE001 - the reply is sent in any case
            self._stand_back(error)
        self._save()

    def reply(self, content: Any) -> Any:
        """The content of a Flower reply, with what the silo says so far; the same object.

        That is how many rounds it has audited, and what is wrong. ε is in the answer to the last
        model, see `answer_records`.

        Args:
            content: a ``RecordDict`` with the model, or its update, in an ``ArrayRecord``.
        """
        from flwr.app import ConfigRecord

        try:
            self.sent(arrays_of(content))
            said = (
                self._unmeasured()
                if self._memory is None
                else brief_answer(self._memory)
            )
            content[RECORDS] = ConfigRecord({"answer": said.to_leave()})
        except Exception as error:  # noqa: BLE001 - the reply is sent in any case
            self._stand_back(error)
        return content

    def answer(self) -> SiloAnswer:
        """What the silo says so far; before the last model was seen, see `final_answer`."""
        return self._unmeasured() if self._memory is None else answer_of(self._memory)

    def _unmeasured(self) -> SiloAnswer:
        options = self._options
        return unmeasured(
            options["silo"],
            unit_of_records(options["records"]),
            options["delta"],
            self._told,
            "no round was audited",
        )

    def report(self, directory: str | Path | None = None) -> str:
        """`answer` as text; with a ``directory`` also as report.json and report.html there."""
        from fl_epe.reporting import silos_text, write_silos_report  # slow to import

        found = [self.answer()]
        if directory is not None:
            write_silos_report(found, (), Path(directory))
        return silos_text(found)


def describe(plan: SiloPlan) -> str:
    """What canaries do to a silo, in a sentence."""
    if plan.too_small:
        return f"{plan.too_small}; its steps are looked at, and none joins them."
    joining = plan.num_canaries * plan.rate * plan.records
    return (
        f"{counted(plan.num_canaries, f'canary {unit_of_records(plan.records)}')}, of which about"
        f" {amount(joining)} join a step of about {plan.batch:g} records:"
        f" {joining / plan.batch:.1%} of it."
    )
