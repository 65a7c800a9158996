"""`RecordAudit` collects at the server how much a federation of silos leaks about a record.

Silos audit their own training with `fl_epe.silos.audit_records`, and each reply contains their
results. Pass ``RecordAudit(strategy, delta=1e-5)`` to Flower instead of the strategy, and call
`RecordAudit.report` after the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.archive import error_text, one_line, read_archive, write_archive
from fl_epe.auditing import RECORDS, SiloAnswer
from fl_epe.checks import check_count, check_positive, check_probability
from fl_epe.files import run_folder
from fl_epe.flower.audited_strategy import AuditedStrategy
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.fault_log import described, logger
from fl_epe.flower.federation_log import (
    FederationLog,
    FederationRound,
    HeardAnswer,
    fingerprint,
    read_answer,
)
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import readable
from fl_epe.flower.round_state import Aggregation
from fl_epe.flower.watching import arguments_of, shares_of
from fl_epe.flower.wrapped import Wrapped
from fl_epe.loggers import Loggers, RunLogger

QUERY = "query.records"
"""The type of the message with the last model."""

_SCHEMA = 1
_WHAT = "an audit saved by RecordAudit"
_JSON = pydantic.TypeAdapter(FederationLog)
# The approximate number of entries of an update of which the energy is computed.
_ENTRIES = 1 << 16
# Uploads are masked if their energies add up to more than this multiple of their sum's energy.
_MASKED = 1e3
# A part of Flower's error message for an app without a query function, and the hint to the
# user.
_NO_HANDLER = "No query function"
_HINT = 'its client app has no line app.query("records")(answer_records)'


class RecordAudit(AuditedStrategy):
    """Collects the results of silos, around any message-API strategy, which works as before.

    The strategy sees the same as without the audit, as the audit's record is removed from each
    reply. After its ``start`` has returned, the last model is sent once to each silo that had
    answered, with the facts that a silo cannot know about its federation (`FederationFacts`).
    If a silo does not answer then, its last answer counts. An error inside the audit never ends
    a run: it is a fault in the report.

    Args:
        strategy: the strategy of the deployment.
        delta: the target δ; silos with another δ are not compared with the others.
        allies: the number of colluding silos against each silo, see `FederationFacts`.
        folder: the folder in which the audit is saved after every round. A server app that was
            killed continues it if it starts again with the model after some round. The rounds
            after that model are removed.
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
        self._is_enabled = enabled
        self._timeout = closing_timeout
        self._path = Path(folder, "silos.npz") if folder else None
        self._loggers = Loggers(
            log_to, Path(folder or run_folder("audit")), logger.warning
        )
        self._log = FederationLog()
        self._has_begun = False
        self._is_resumed = False
        self._is_changed = False
        self._is_closed = False
        self._grid: Grid | None = None
        self._newest: ArrayRecord | None = None
        super().__init__(strategy, self._fault)

    def _fault(self, failure: str, reason: Exception | str) -> None:
        """Add and log a failure with its reason, unless it is already known."""
        fault = f"{failure}: {described(reason)}"
        if not any(
            earlier.startswith(f"{failure}: ") for earlier in self._log.faults
        ):
            self._log.faults.append(fault)
            logger.warning("Audit of records: %s", fault)

    def start(self, *arguments: Any, **named: Any) -> Any:
        """Call the strategy's own ``start`` with the audit, with its arguments and result."""
        # A function that replaced the strategy's ``start`` calls this one.
        if "start" in self._hooks.calling:
            return type(self.strategy).start(self.strategy, *arguments, **named)
        start = self.strategy.start
        if not self._is_enabled:
            self._fault("nothing is audited", "enabled=False")
            return start(*arguments, **named)
        self._has_begun = False
        with self._noting_failure("the audit could not prepare"):
            values = arguments_of(start, arguments, named)
            if isinstance(values.get("initial_arrays"), ArrayRecord):
                self._open(values["initial_arrays"], values["grid"])
        result = self._start_hooked(start, *arguments, **named)
        with self._noting_failure("the last model could not be sent to silos"):
            self.ask_silos()
            returned = getattr(result, "arrays", None)
            if returned and fingerprint(returned) != self._log.model:
                self._fault(
                    "all answers belong to the last round",
                    "start() returned another model",
                )
        return result

    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it, for a loop without `start`.

        Call `ask_silos` after the loop.
        """
        if self._is_enabled:
            self._hooks.attach()
        return self.strategy

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Any:
        """The strategy's messages."""
        original = self._hooks.replaced("configure_train")
        if original is not None:
            return original(server_round, arrays, config, grid)
        with self._noting_failure("the round cannot be audited"):
            self._open(arrays, grid)
        return self._hooks.call(
            "configure_train", server_round, arrays, config, grid
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> Any:
        """The strategy's aggregate of the replies."""
        original = self._hooks.replaced("aggregate_train")
        if original is not None:
            return original(server_round, replies)
        replies = list(replies)
        uploads = readable(replies)
        energies = dict[str, float | None]()
        with self._noting_failure("silos' answers cannot be read"):
            for reply in uploads:
                node = reply.metadata.src_node_id
                answer = self._answer_in(reply)
                silo = self._log.name(node, answer, energies)
                energies[silo] = None
                if answer is not None:
                    self._log.heard[silo] = HeardAnswer(
                        node, len(self._log.rounds) + 1, answer
                    )
        with self._noting_failure("uploads cannot be read"):
            energies |= zip(energies, self._energies(uploads), strict=True)
        result = self._hooks.call("aggregate_train", server_round, replies)
        with self._noting_failure("the round could not be noted"):
            self._close(energies, uploads, result[0])
        return result

    def _open(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Store the model at the beginning of a round; the first shows where to continue."""
        self._grid = grid
        is_same = arrays is self._newest
        self._newest = arrays
        if self._has_begun:
            if not is_same:
                self._is_changed |= fingerprint(arrays) != self._log.model
            return
        self._has_begun = True
        with self._noting_failure("the saved audit cannot be read"):
            path = self._path
            if not self._log.rounds and path is not None and path.exists():
                (saved,), _ = read_archive(
                    path, _WHAT, schema=_SCHEMA, texts=("silos",)
                )
                self._log = _JSON.validate_python(saved)
        rounds = len(self._log.rounds)
        remaining = self._log.go_back(fingerprint(arrays)) if rounds else 0
        if rounds and not remaining:
            logger.warning(
                "Audit of records: %d rounds are of another run: a new log begins",
                rounds,
            )
        self._is_resumed = bool(self._log.rounds)
        self._is_closed = False

    def _answer_in(self, reply: Message) -> SiloAnswer | None:
        """Remove the audit's record from a reply, and return the answer, or ``None``."""
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
        """‖w_j (θ_j − θ_sent)‖² of each upload; ``None`` if they are masked or unreadable."""
        unseen: list[float | None] = [None] * len(uploads)
        if self._newest is None:
            return unseen
        updates = RoundUpdates.of(
            self._wrapped,
            Layout.of(self._newest),
            self._newest,
            uploads,
            kind=self._wrapped.reply_kind,
            entries=_ENTRIES,
        )
        if updates is None or len(updates.nodes) < len(uploads):
            return unseen
        added = updates.weights[:, None] * updates.entries
        energies = np.sum(added**2, axis=1)
        if energies.sum() > _MASKED * np.sum(added.sum(axis=0) ** 2):
            return unseen
        return list(energies.tolist())

    def _close(
        self,
        energies: dict[str, float | None],
        uploads: Sequence[Message],
        arrays: ArrayRecord | None,
    ) -> None:
        """Add a round that has ended to the log."""
        model = self._log.model
        is_average = True
        if arrays:
            model = fingerprint(arrays)
            is_average = self._wrapped.averages or self._is_average(
                uploads, arrays
            )
            self._newest = arrays
        self._log.rounds.append(
            FederationRound(energies, model, bool(arrays), is_average)
        )
        count = len(self._log.rounds)
        if count == 1:
            for silo in sorted(energies.keys() - self._log.heard.keys()):
                logger.warning(
                    "Audit of records: no answer came from %s (audit.reply)",
                    silo,
                )
        if self._path is not None:
            saved = {"silos": _JSON.dump_python(self._log, mode="json")}
            if count == 1:
                previous = self._path.with_stem("silos-before")
            else:
                previous = None
            write_archive(
                self._path, {}, saved, schema=_SCHEMA, previous=previous
            )
        if self._loggers:
            self._loggers.log(count, self.metrics(), resumed=self._is_resumed)

    def _is_average(
        self, uploads: Sequence[Message], arrays: ArrayRecord
    ) -> bool:
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

    def _server(self) -> dict[str, Any]:
        """The server's update of the model, as fields of `FederationFacts`."""
        server = self._wrapped.server()
        name = self._wrapped.description
        if self._is_changed:
            return {"server": f"{name}, whose model is changed between rounds"}
        all_averaged = all(past.averaged for past in self._log.rounds)
        if len(self._wrapped.layers) > 1 or not all_averaged:
            return {"server": name}
        if isinstance(server, str):
            return {}
        if self._is_resumed and server.momentum:
            return {"server": f"{name}, whose momentum was lost in a restart"}
        return dataclasses.asdict(server)

    def ask_silos(self) -> None:
        """Send the last model to each silo that has answered, and store its answer.

        `start` calls this function at its end. If a loop of your own replaces `start`, call it
        once, after the loop.
        """
        if self._grid is None or self._newest is None:
            return
        messages = list[Message]()
        for silo, heard in self._log.heard.items():
            facts = self._log.facts(silo, self._allies, **self._server())
            content = RecordDict(
                {RECORDS: ConfigRecord({"facts": facts.to_json()})}
            )
            content[self._wrapped.arrays_key()] = self._newest
            messages.append(Message(content, heard.node, QUERY))
        self._is_closed = True
        for reply in self._grid.send_and_receive(
            messages, timeout=self._timeout
        ):
            node = reply.metadata.src_node_id
            silo = self._log.names.get(node, f"node {node}")
            if reply.has_error():
                reason = reply.error.reason or "no reason was given"
                if _NO_HANDLER in reason:
                    reason = _HINT
                # The last line of a traceback is the error.
                lines = reason.strip().splitlines() or [reason]
                last_line = lines[-1]
                self._fault(f"{silo} did not answer the last model", last_line)
                continue
            answer = self._answer_in(reply)
            if answer is not None:
                rounds = len(self._log.rounds)
                self._log.heard[silo] = HeardAnswer(
                    node, rounds, answer, saw_last=True
                )

    def answers(self) -> dict[str, SiloAnswer]:
        """The newest answer of each silo, by its name."""
        answers = dict[str, SiloAnswer]()
        for silo, heard in sorted(self._log.heard.items()):
            answer = self._log.answer(silo)
            if self._is_closed and not heard.saw_last:
                notes = (*answer.notes, "the last model was never seen by it")
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
                        f"{silo}: no answer came with its replies (audit.reply)"
                    )
                elif answers[silo].delta != self._delta:
                    faults.append(
                        f"{silo}: its δ is not {self._delta:.2g}, and it is not compared"
                    )
        except Exception as error:  # noqa: BLE001 - the known faults are returned
            faults.append(
                f"the faults are incomplete: {one_line(error_text(error))}"
            )
        return faults

    def metrics(self) -> dict[str, float]:
        """ε by adversary, the largest and that of each silo, for loggers."""
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

        It never raises an error: if a file cannot be written, the text says that.
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
            self._fault("the report could not be made", error)
            return "\n".join(["ε: not measured", *self._log.faults])
