"""`RecordAudit`: what a federation of silos leaks of a record, gathered at the server.

Silos audit their own training, with `fl_epe.silos.audit_records`, and each reply holds what they
found. Hand ``RecordAudit(strategy, delta=1e-5)`` to Flower in place of the strategy, and call
`RecordAudit.report` after the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.archive import UNREADABLE, error_text, one_line, read_archive, write_archive
from fl_epe.auditing import SiloAnswer
from fl_epe.checks import check_count, check_positive, check_probability
from fl_epe.files import run_folder
from fl_epe.flower.arrays import Layout
from fl_epe.flower.audited_strategy import AuditedStrategy
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.federation_log import (
    FederationLog,
    FederationRound,
    HeardAnswer,
    fingerprint,
    read_answer,
)
from fl_epe.flower.replies import readable
from fl_epe.flower.state import Aggregation, logger
from fl_epe.flower.watching import arguments_of, shares_of
from fl_epe.flower.wrapped import Wrapped
from fl_epe.loggers import Loggers, RunLogger
from fl_epe.mechanism import ServerSGD

RECORDS = "fl_epe.records"
"""Name of the record in a message by which silos and the server talk."""

QUERY = "query.records"
"""Type of the message with the last model."""

_SCHEMA = 1
_JSON = pydantic.TypeAdapter(FederationLog)
_ENTRIES = 1 << 16  # of an update, about, whose energy is taken
_MASKED = 1e3  # times the energy of the sum, that masks have and updates have not
_HINT = 'does its client app have the line app.query("records")(answer_records)?'


class RecordAudit(AuditedStrategy):
    """Gathers what silos measured, around any message-API strategy, which goes on as before.

    The strategy sees what it would see without: the audit's record is taken out of each reply.
    After its ``start`` has returned, the last model is sent once to each silo that had answered,
    with what a silo cannot know of its federation (`FederationFacts`). A silo that does not answer
    keeps its last answer. An error inside the audit never ends a run: it is a fault in the report.

    Args:
        strategy: what the deployment uses.
        delta: target δ; silos with another one are not compared with the others.
        allies: silos that look together, against each silo, itself included.
        folder: where the audit is kept after every round, so that a server app that was killed goes
            on with it: start again with the model after some round. Later rounds are forgotten.
        log_to: see `fl_epe.loggers`.
        enabled: whether to audit at all.
        closing_timeout: seconds to wait for the answers to the last model.

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
        self._delta, self._allies = delta, allies
        self._is_enabled, self._timeout = enabled, closing_timeout
        self._path = Path(folder, "silos.npz") if folder else None
        self._loggers = Loggers(log_to, Path(folder or run_folder("audit")), logger.warning)
        self._log = FederationLog()
        self._is_resumed = self._has_begun = self._is_closed = self._is_changed = False
        self._grid: Grid | None = None
        self._sent: ArrayRecord | None = None
        super().__init__(strategy, self._fault)

    def _fault(self, what: str, error: Exception) -> None:
        """Keep what could not be done, and log it the first time."""
        self._note(f"{what}: {one_line(error_text(error))}")

    def _note(self, fault: str) -> None:
        if self._log.note(fault):
            logger.warning("Audit of records: %s", fault)

    @contextlib.contextmanager
    def _goes_on(self, what: str) -> Iterator[None]:
        """An error in this context is a fault, and the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._fault(what, error)

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        self._fault(f"{name} goes on without the audit", error)
        return []

    def start(self, *arguments: Any, **named: Any) -> Any:
        """The strategy's own ``start``, with the audit; takes and returns what that does."""
        own = self.strategy.start
        if self._is_running:  # called by a function that was put in its place
            return type(self.strategy).start(self.strategy, *arguments, **named)
        if not self._is_enabled:
            return own(*arguments, **named)
        self._has_begun = False
        with self._goes_on("the audit could not prepare"):
            given = arguments_of(own, arguments, named)
            if isinstance(model := given.get("initial_arrays"), ArrayRecord):
                self._open(model, given["grid"])
        result = self._start_hooked(own, *arguments, **named)
        with self._goes_on("the last model could not be sent to silos"):
            self._check_returned(getattr(result, "arrays", None))
            self.ask_silos()
        return result

    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it, for a loop that calls no ``start``.

        Call `ask_silos` after the loop.
        """
        if self._is_enabled:
            self._hooks.attach()
        return self.strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """The strategy's messages."""
        if (own := self._hooks.replaced("configure_train")) is not None:
            return own(server_round, arrays, config, grid)
        with self._goes_on("the round cannot be audited"):
            self._open(arrays, grid)
        return self._hooks.call("configure_train", server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """What the strategy makes of the replies."""
        if (own := self._hooks.replaced("aggregate_train")) is not None:
            return own(server_round, replies)
        replies = list(replies)
        energies: dict[int, float | None] = {}
        with self._goes_on("silos' answers could not be read"):
            for reply in readable(replies):
                energies[reply.metadata.src_node_id] = None
                self._hear(reply, HeardAnswer(len(self._log.rounds) + 1, ""))
        with self._goes_on("uploads cannot be read"):
            energies |= self._energies(readable(replies))
        result = self._hooks.call("aggregate_train", server_round, replies)
        with self._goes_on("the round could not be noted"):
            self._close(energies, readable(replies), result)
        return result

    def _open(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Take the model that a round begins with; the first one says where the audit goes on."""
        self._grid, before, self._sent = grid, self._sent, arrays
        if arrays is before:
            return
        model = fingerprint(arrays)
        if not self._has_begun:
            self._has_begun, self._is_closed = True, False
            self._go_on(model)
        elif model != self._newest():
            self._is_changed = True

    def _newest(self) -> str:
        return self._log.rounds[-1].model if self._log.rounds else self._log.start

    def _go_on(self, model: str) -> None:
        """Go on after the round that released a model; with any other one a new log begins."""
        if not self._log.rounds and self._path is not None and self._path.exists():
            with self._goes_on("the saved audit cannot be read, and a new one begins"):
                (saved,), _ = read_archive(
                    self._path, "an audit saved by RecordAudit", schema=_SCHEMA, texts=("silos",)
                )
                self._log = _JSON.validate_python(saved)
                self._is_resumed = True
        known = len(self._log.rounds)
        done = self._log.rounds_until(model)
        self._log.go_back(done)
        if known > done > 0:
            self._note(f"rounds {done + 1} to {known} are forgotten: they are not in the model")
        elif not done:
            self._log = FederationLog(model)
            self._is_resumed = False
            self._set_aside()

    def _set_aside(self) -> None:
        """Leave the file of another run under another name."""
        if self._path is not None and self._path.exists():
            names = (self._path.with_stem(f"silos-{number}") for number in itertools.count(1))
            self._path.rename(next(name for name in names if not name.exists()))

    def _hear(self, reply: Message, heard: HeardAnswer) -> None:
        """Take the audit's record out of a reply, and keep the answer in it."""
        node, record = reply.metadata.src_node_id, reply.content.get(RECORDS)
        if not isinstance(record, ConfigRecord):
            return
        del reply.content[RECORDS]
        try:
            answer = record.get("answer")
            read_answer(answer, node)
            self._log.heard[node] = dataclasses.replace(heard, text=str(answer))
        except UNREADABLE as error:
            self._fault(f"node {node} answered something else", error)

    def _energies(self, replies: Sequence[Message]) -> dict[int, float | None]:
        """‖w_j (θ_j − θ_sent)‖² of each node's upload; empty if they are masked or unreadable."""
        assert self._sent is not None  # noqa: S101 - a round was opened
        layout = Layout.of(self._sent)
        kind = "model" if self._wrapped.takes_models else None
        updates = RoundUpdates.of(
            self._wrapped, layout, self._sent, replies, kind=kind, entries=_ENTRIES
        )
        if updates is None or len(updates.nodes) < len(replies):
            return {}
        added = updates.weights[:, None] * updates.entries
        energies = np.sum(added**2, axis=1)
        if energies.sum() > _MASKED * np.sum(added.sum(axis=0) ** 2):
            return {}
        return dict(zip(updates.nodes, energies.tolist(), strict=True))

    def _close(
        self, energies: dict[int, float | None], replies: Sequence[Message], result: Any
    ) -> None:
        arrays = result[0] if isinstance(result, tuple) else None
        model, averaged = self._newest(), self._wrapped.averages
        if arrays:
            model = fingerprint(arrays)
            if not averaged:
                averaged = self._is_average(replies, arrays)
            self._sent = arrays
        self._log.rounds.append(FederationRound(energies, model, bool(arrays), averaged))
        if self._path is not None:
            with self._goes_on("the audit could not be saved"):
                saved = _JSON.dump_python(self._log, mode="json")
                write_archive(self._path, {}, {"silos": saved}, schema=_SCHEMA)
        if self._loggers:
            self._loggers.log(len(self._log.rounds), self.metrics(), resumed=self._is_resumed)

    def _is_average(self, replies: Sequence[Message], arrays: ArrayRecord) -> bool:
        key, preferred = self._wrapped.weighted_by(), self._wrapped.arrays_key()
        with contextlib.suppress(*UNREADABLE):
            layout = Layout.of(arrays)
            return shares_of(Aggregation(replies, arrays), key, layout, preferred) is not None
        return False

    def _server(self) -> dict[str, Any]:
        """What moves the model, as fields of `FederationFacts`."""
        server, name = self._wrapped.server(), self._wrapped.description
        if len(self._wrapped.layers) == 1 and all(one.averaged for one in self._log.rounds):
            server = server if isinstance(server, ServerSGD) else ServerSGD()
        else:
            server = name
        if self._is_changed:
            server = f"{name}, whose model is changed between rounds"
        if isinstance(server, str):
            return {"server": server}
        if self._is_resumed and server.momentum:
            return {"server": f"{name}, whose momentum was lost in a restart"}
        return dataclasses.asdict(server)

    def _check_returned(self, returned: object) -> None:
        if isinstance(returned, ArrayRecord) and returned and self._log.rounds:
            if returned is not self._sent and fingerprint(returned) != self._newest():
                self._note(
                    "the model that start() returned is not that of the last round, to which all"
                    " answers belong"
                )

    def ask_silos(self) -> None:
        """Send the last model to each silo that has answered, and take its answer.

        Called by `start`; here for loops that do not call that.
        """
        asked = dict[int, str]()
        for name, nodes in self._log.silos().items():
            answered = [node for node in nodes if node in self._log.heard]
            if answered:
                asked[max(answered, key=lambda node: self._log.heard[node].rounds)] = name
        if not asked or self._grid is None or self._sent is None:
            return
        self._is_closed = True
        server, messages = self._server(), list[Message]()
        for node, name in asked.items():
            facts = self._log.facts(self._log.silos()[name], self._allies, **server)
            content = RecordDict(
                {
                    self._wrapped.arrays_key(): self._sent,
                    RECORDS: ConfigRecord({"facts": facts.to_json()}),
                }
            )
            messages.append(Message(content, node, QUERY))
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                reason = one_line(reply.error.reason)
                self._note(f"{asked.get(node)}: no answer to the last model ({reason}); {_HINT}")
            else:
                self._hear(reply, HeardAnswer(len(self._log.rounds), "", saw_last=True))

    def answers(self) -> dict[str, SiloAnswer]:
        """The newest answer of each silo, by its name."""
        answers = dict[str, SiloAnswer]()
        for name, nodes in self._log.silos().items():
            answer, heard = self._log.answer(nodes), self._log.last_heard(nodes)
            if answer is None or heard is None:
                continue
            notes = answer.notes
            if self._is_closed and not heard.saw_last:
                notes = (*notes, "the last model was never seen by it")
            answers[name] = dataclasses.replace(answer, silo=name, notes=notes)
        return answers

    @property
    def faults(self) -> list[str]:
        """What went wrong so far, and silos that do not answer, or not as the others."""
        faults, answers = [*self._log.faults], self.answers()
        if not self._is_enabled:
            faults.append("the audit was off (enabled=False)")
        for name in self._log.silos():
            if name not in answers:
                faults.append(f"{name}: no answer came with its replies: do they audit.reply(…)?")
            elif answers[name].delta != self._delta:
                faults.append(
                    f"{name}: its δ is {answers[name].delta:.2g}, and that of the audit"
                    f" {self._delta:.2g}: only like is compared with like"
                )
        return faults

    def metrics(self) -> dict[str, float]:
        """ε by adversary, the largest and that of each silo, as loggers are told."""
        from fl_epe.reporting import silo_metrics  # slow to import

        alike = [one for one in self.answers().values() if one.delta == self._delta]
        return silo_metrics(alike)

    def report(self, directory: str | Path | None = None) -> str:
        """The report as text; with a ``directory``, also report.json and report.html.

        Never raises: where a file cannot be written the text says that.
        """
        from fl_epe.reporting import silos_text, write_silos_report

        folder = None if directory is None else Path(directory)
        if folder is not None:
            with self._goes_on("the report's files could not be written"):
                write_silos_report([*self.answers().values()], self.faults, folder)
        try:
            self._loggers.close({"status": "ok", **self.metrics()}, folder)
            return silos_text([*self.answers().values()], self.faults)
        except Exception as error:  # noqa: BLE001 - what is known is said
            self._fault("the report could not be made", error)
            return "\n".join(["ε: not measured", *self._log.faults])
