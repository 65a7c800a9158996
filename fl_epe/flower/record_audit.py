"""`RecordAudit` collects at the server how much a federation of silos leaks about a data record.

Silos audit their own training with `fl_epe.silos.audit_records`, and each reply contains their
results. Pass ``RecordAudit(strategy, delta=1e-5)`` to Flower instead of the strategy, and call
`RecordAudit.report` after the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.archive import read_archive, write_archive
from fl_epe.auditing import RECORDS, SiloAnswer
from fl_epe.checks import check_count, check_positive, check_probability
from fl_epe.files import run_folder
from fl_epe.flower.audited_strategy import AuditedStrategy, arguments_of
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.fault_log import described, logger
from fl_epe.flower.federation_log import (
    FederationLog,
    FederationRound,
    HeardAnswer,
    model_hash,
    read_answer,
)
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import readable
from fl_epe.flower.round_state import Aggregation
from fl_epe.flower.watching import shares_of
from fl_epe.flower.wrapped import Wrapped
from fl_epe.loggers import Loggers, RunLogger
from fl_epe.mechanism import ServerSGD

QUERY = "query.records"
"""The type of the message with the last model."""

_SCHEMA = 1
_FILE_KIND = "an audit saved by RecordAudit"
_LOG_TYPE = pydantic.TypeAdapter(FederationLog)
# The approximate number of entries of an update from which its energy is computed.
_SAMPLED_ENTRIES = 1 << 16
# Random masks cancel in the sum of the uploads: uploads count as masked if their energies add up
# to more than this multiple of the energy of their sum.
_MAX_ENERGY_RATIO = 1e3
# A part of Flower's error message for a client app without a function for the last model.
_NO_QUERY_FUNCTION = "No query function"
_QUERY_FUNCTION_HINT = (
    'its client app has no line app.query("records")(answer_records)'
)


class RecordAudit(AuditedStrategy):
    """Collects the results of silos, around any message-API strategy, which works as before.

    The strategy sees the same as without the audit, as the audit's ``ConfigRecord`` is removed
    from each reply. After its ``start`` has returned, the last model is sent once to each silo
    that had answered, with the facts that a silo cannot know about its federation
    (`FederationFacts`). If a silo does not answer then, its answer in an earlier reply counts. An
    error inside the audit never ends a run: it is a fault in the report.

    If a loop of your own replaces ``start``, call ``attach`` before it, which hooks the strategy
    and returns it, and `ask_silos` after it.

    Args:
        strategy: the strategy of the deployment.
        delta: the target δ; silos with another δ are not compared with the others.
        allies: the number of colluding silos against each silo, see `FederationFacts`.
        folder: the folder in which the audit is saved after every round. If a server app that was
            killed starts again with the model that a round t released, the saved audit continues
            with round t + 1, and its rounds after t are removed.
        log_to: the loggers, see `fl_epe.loggers`.
        enabled: whether the run is audited.
        closing_timeout: the time to wait for the answers to the last model, in seconds.

    Raises:
        TypeError: for a strategy of another API.
        ValueError: for an argument out of range.
    """

    def __init__(
        self,
        strategy: Strategy,
        delta: float,
        *,
        allies: int = 1,
        folder: str | Path | None = None,
        log_to: str | Sequence[str | RunLogger] = (),
        enabled: bool = True,
        closing_timeout: float = 600.0,
    ) -> None:
        check_probability("delta", delta)
        check_count("allies", allies)
        check_positive("closing_timeout", closing_timeout)
        self._wrapped = Wrapped(strategy, with_canaries=False)
        self._delta = delta
        self._allies = allies
        self._timeout = closing_timeout
        self._path = Path(folder, "silos.npz") if folder else None
        self._loggers = Loggers(
            log_to, Path(folder or run_folder("audit")), logger.warning
        )
        self._log = FederationLog()
        # The state of this run, which is not saved.
        self._has_begun = False
        self._is_resumed = False
        self._is_model_changed = False
        self._has_asked_silos = False
        self._grid: Grid | None = None
        self._model: ArrayRecord | None = None
        if not enabled:
            self._add_fault("nothing is audited", "enabled=False")
        super().__init__(strategy, self._add_fault, is_enabled=enabled)

    def _add_fault(self, failure: str, reason: Exception | str) -> None:
        """Add and log a failure with its reason, unless it was added before, for any reason."""
        fault = f"{failure}: {described(reason)}"
        if not any(
            earlier.startswith(f"{failure}: ") for earlier in self._log.faults
        ):
            self._log.faults.append(fault)
            logger.warning("Audit of records: %s", fault)

    def _start_audited(self, *arguments: Any, **named: Any) -> Any:
        self._has_begun = False
        with self._noting_failure("the audit could not prepare"):
            values = arguments_of(self.strategy.start, arguments, named)
            if isinstance(values.get("initial_arrays"), ArrayRecord):
                self._begin_round(values["initial_arrays"], values["grid"])
        result = self._start_hooked(*arguments, **named)
        with self._noting_failure("the last model could not be sent to silos"):
            self.ask_silos()
            returned = getattr(result, "arrays", None)
            if returned and model_hash(returned) != self._log.model:
                self._add_fault(
                    "the answers are about the model of the last round",
                    "start() returned another model",
                )
        return result

    def _configure_audited(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Any:
        """The strategy's messages, after the model that they send was noted."""
        with self._noting_failure("the round cannot be audited"):
            self._begin_round(arrays, grid)
        return self._hooks.call(
            "configure_train", server_round, arrays, config, grid
        )

    def _aggregate_audited(
        self, server_round: int, replies: list[Message]
    ) -> Any:
        """The strategy's aggregate of the replies, without the audit's part in each of them."""
        uploads = readable(replies)
        silos = list[str]()  # the silo of each upload
        with self._noting_failure("silos' answers cannot be read"):
            for reply in uploads:
                node = reply.metadata.src_node_id
                answer = self._pop_answer(reply)
                silo = self._log.name_silo(node, answer, silos)
                silos.append(silo)
                if answer is not None:
                    self._log.heard[silo] = HeardAnswer(
                        node, len(self._log.rounds) + 1, answer
                    )
        energies: dict[str, float | None] = dict.fromkeys(silos)
        with self._noting_failure("uploads cannot be read"):
            energies = dict(zip(silos, self._energies(uploads), strict=True))
        result = self._hooks.call("aggregate_train", server_round, replies)
        with self._noting_failure("the round could not be noted"):
            self._end_round(energies, uploads, result[0])
        return result

    def _begin_round(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Note the model with which a round begins.

        In the first round, load the saved log, and remove the rounds after this model.
        """
        self._grid = grid
        is_same = arrays is self._model
        self._model = arrays
        if self._has_begun:
            if not is_same and model_hash(arrays) != self._log.model:
                self._is_model_changed = True
            return
        self._has_begun = True
        with self._noting_failure("the saved audit cannot be read"):
            path = self._path
            if not self._log.rounds and path is not None and path.exists():
                (saved,), _ = read_archive(
                    path, _FILE_KIND, schema=_SCHEMA, texts=("silos",)
                )
                self._log = _LOG_TYPE.validate_python(saved)
        rounds = len(self._log.rounds)
        self._log = self._log.up_to(model_hash(arrays))
        if rounds and not self._log.rounds:
            logger.warning(
                "Audit of records: %d rounds are of another run: a new log begins",
                rounds,
            )
        self._is_resumed = bool(self._log.rounds)
        self._has_asked_silos = False

    def _pop_answer(self, reply: Message) -> SiloAnswer | None:
        """Remove the audit's ``ConfigRecord`` from a reply, and return the answer in it.

        If there is no readable answer, the result is ``None``.
        """
        node = reply.metadata.src_node_id
        with self._noting_failure(
            f"node {node} gave no answer that can be read"
        ):
            record = reply.content.get(RECORDS)
            if isinstance(record, ConfigRecord):
                del reply.content[RECORDS]
                return read_answer(record["answer"], node)
        return None

    def _energies(self, uploads: Sequence[Message]) -> list[float | None]:
        """The energy ‖w_j (θ_j − θ_sent)‖² of each upload.

        All are ``None`` if the uploads are masked, or if any of them cannot be read.
        """
        unknown: list[float | None] = [None] * len(uploads)
        if self._model is None:
            return unknown
        updates = RoundUpdates.of(
            self._wrapped,
            Layout.of(self._model),
            self._model,
            uploads,
            kind=self._wrapped.reply_kind,
            entries=_SAMPLED_ENTRIES,
        )
        if updates is None or len(updates.nodes) < len(uploads):
            return unknown
        weighted = updates.weights[:, None] * updates.entries
        energies = np.sum(weighted**2, axis=1)
        energy_of_sum = np.sum(weighted.sum(axis=0) ** 2)
        if energies.sum() > _MAX_ENERGY_RATIO * energy_of_sum:
            return unknown
        return list(energies.tolist())

    def _end_round(
        self,
        energies: dict[str, float | None],
        uploads: Sequence[Message],
        arrays: ArrayRecord | None,
    ) -> None:
        """Add a round that has ended to the log, save the log, and pass on the metrics."""
        model = self._log.model
        is_average = True  # without a result, nothing contradicts it
        if arrays:
            model = model_hash(arrays)
            is_average = self._wrapped.averages or self._is_average(
                uploads, arrays
            )
            self._model = arrays
        self._log.rounds.append(
            FederationRound(
                energies, model, released=bool(arrays), averaged=is_average
            )
        )
        count = len(self._log.rounds)
        if count == 1:
            for silo in sorted(energies.keys() - self._log.heard.keys()):
                logger.warning(
                    "Audit of records: no answer came from %s: its client app must put"
                    " audit.reply(…) into its reply",
                    silo,
                )
        if self._path is not None:
            saved = {"silos": _LOG_TYPE.dump_python(self._log, mode="json")}
            # The first round of a run replaces the file of another run, which is renamed.
            previous = None
            if count == 1:
                previous = self._path.with_stem("silos-before")
            write_archive(
                self._path, {}, saved, schema=_SCHEMA, previous=previous
            )
        if self._loggers:
            self._loggers.log(count, self.metrics(), resumed=self._is_resumed)

    def _is_average(
        self, uploads: Sequence[Message], arrays: ArrayRecord
    ) -> bool:
        """Whether the arrays are the average of the uploads, as far as these can be read."""
        try:
            averaging = shares_of(
                Aggregation(uploads, arrays),
                self._wrapped.weighted_by(),
                Layout.of(arrays),
                self._wrapped.arrays_key(),
            )
        except ValueError:
            return False
        return averaging is not None

    def _server_facts(self) -> dict[str, Any]:
        """The fields of `FederationFacts` on the server's update of the model.

        Returns:
            The fields of `ServerSGD` if the server is known to apply SGD to the average of the
            replies; otherwise ``server`` alone, a text that says what it does instead.
        """
        server = self._wrapped.server()
        name = self._wrapped.description
        if self._is_model_changed:
            return {"server": f"{name}, whose model is changed between rounds"}
        all_averaged = all(past.averaged for past in self._log.rounds)
        if len(self._wrapped.layers) > 1 or not all_averaged:
            return {"server": name}
        if isinstance(server, str):
            # The strategy is unknown, but was observed to average the replies.
            server = ServerSGD()
        if self._is_resumed and server.momentum:
            return {"server": f"{name}, whose momentum was lost in a restart"}
        return dataclasses.asdict(server)

    def ask_silos(self) -> None:
        """Send the last model to each silo that has answered, and store its answer.

        ``start`` calls this function at its end. If a loop of your own replaces ``start``, call
        it once, after the loop.
        """
        if self._grid is None or self._model is None:
            return
        messages = list[Message]()
        for silo, heard in self._log.heard.items():
            facts = self._log.facts(silo, self._allies, **self._server_facts())
            content = RecordDict(
                {RECORDS: ConfigRecord({"facts": facts.to_json()})}
            )
            content[self._wrapped.arrays_key()] = self._model
            messages.append(Message(content, heard.node, QUERY))
        self._has_asked_silos = True
        for reply in self._grid.send_and_receive(
            messages, timeout=self._timeout
        ):
            self._store_last_answer(reply)

    def _store_last_answer(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        silo = self._log.names.get(node, f"node {node}")
        if reply.has_error():
            reason = reply.error.reason or "no reason was given"
            if _NO_QUERY_FUNCTION in reason:
                reason = _QUERY_FUNCTION_HINT
            # The last line of a traceback is the error.
            lines = reason.strip().splitlines() or [reason]
            self._add_fault(f"{silo} did not answer the last model", lines[-1])
            return
        answer = self._pop_answer(reply)
        if answer is not None:
            self._log.heard[silo] = HeardAnswer(
                node, len(self._log.rounds), answer, saw_last=True
            )

    def answers(self) -> dict[str, SiloAnswer]:
        """The newest answer of each silo, by its name, as corrected by `FederationLog.answer`."""
        answers = dict[str, SiloAnswer]()
        for silo, heard in sorted(self._log.heard.items()):
            answer = self._log.answer(silo)
            if self._has_asked_silos and not heard.saw_last:
                notes = (*answer.notes, "it has not seen the last model")
                answer = dataclasses.replace(answer, notes=notes)
            answers[silo] = answer
        return answers

    @property
    def faults(self) -> list[str]:
        """The faults so far, including silos without an answer or with another δ."""
        faults = [*self._log.faults]
        try:
            answers = self.answers()
            for silo in self._log.silos:
                if silo not in answers:
                    faults.append(
                        f"{silo}: no answer came with its replies: its client app must put"
                        " audit.reply(…) into its reply"
                    )
                elif answers[silo].delta != self._delta:
                    faults.append(
                        f"{silo}: its δ is not {self._delta:.2g}, and it is not compared"
                    )
        except Exception as error:  # noqa: BLE001 - the known faults are returned
            faults.append(f"the faults are incomplete: {described(error)}")
        return faults

    def metrics(self) -> dict[str, float]:
        """The metrics for loggers: for each adversary, the largest ε, and that of each silo."""
        from fl_epe.reporting import silo_metrics  # slow to import

        return silo_metrics(
            [
                answer
                for answer in self.answers().values()
                if answer.delta == self._delta
            ]
        )

    def report(self, directory: str | Path | None = None) -> str:
        """The report as text; with a ``directory``, also report.json and report.html.

        It also closes the loggers. It never raises an error: if a file cannot be written, the text
        says that.
        """
        from fl_epe.reporting import silos_json, silos_text, write_silos_report

        with self._noting_failure("the report could not be written"):
            folder = None if directory is None else Path(directory)
            answers = [*self.answers().values()]
            if folder is not None:
                write_silos_report(answers, self.faults, folder)
            status = silos_json(answers, self.faults)["status"]
            self._loggers.close({"status": status, **self.metrics()}, folder)
        try:
            return silos_text([*self.answers().values()], self.faults)
        except Exception as error:  # noqa: BLE001 - the known faults are returned
            self._add_fault("the report could not be made", error)
            return "\n".join(["ε: not measured", *self._log.faults])
