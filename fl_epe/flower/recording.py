"""`Recording`: the measurements of an audited run, and the arrays that canaries may move."""

import contextlib
import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
from flwr.app import ArrayRecord

from fl_epe.archive import add_prefix, digest, select_prefix
from fl_epe.auditing import FaultKind, RoundFacts, RunAuditor
from fl_epe.checks import NamedArrays, Vector
from fl_epe.flower.checkpoint import SavedAudit
from fl_epe.flower.client_noise import ClientNoise
from fl_epe.flower.dominance import NodeContributions
from fl_epe.flower.fault_log import FaultLog, logger
from fl_epe.flower.free_arrays import not_free, unmoved
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.plan import AuditPlan
from fl_epe.flower.replies import base_of
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.seen_clients import SeenClients
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.state import AuditState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm
from fl_epe.messages import pack
from fl_epe.noise import RUN_LEVEL, NoiseHealth


class Recording:
    """The measurements of one run.

    Args:
        settings: the settings of the audit.
        wrapped: the strategy.
        state: the state of the audit.
        faults: the faults of the run.

    Attributes:
        auditor: the recorder that scores the canaries.
        seen: the clients that took part.
        client_noise: the test of the noise that clients add.
        noise: the checks of the noise of Flower's DP wrappers, as far as it could be separated
            from the updates.
        contributions: the contribution of each node to the model.
        start: the initial model.
        last: the newest model that could be read, as a vector.
        last_is_finite: whether the newest model has no NaN or infinite entries.
    """

    def __init__(
        self,
        settings: CanaryAuditSettings,
        wrapped: Wrapped,
        state: AuditState,
        faults: FaultLog,
    ) -> None:
        self.settings = settings
        self.wrapped = wrapped
        self.state = state
        self.faults = faults
        self.seen = SeenClients()
        self.client_noise = ClientNoise(settings.client_noise, state.seed)
        self.start: ArrayRecord | None = None
        self.last: Vector | None = None
        self.last_is_finite = True
        self._noise_fails: bool | None = None  # the result of the last check
        self._score_with(self._new_auditor())

    def _score_with(self, auditor: RunAuditor) -> None:
        """Use this auditor from now on, and discard what was measured of noise and nodes."""
        self.auditor = auditor
        self.noise = NoiseHealth(level=RUN_LEVEL)
        self.contributions = NodeContributions(self.state.seed)

    def _new_auditor(self) -> RunAuditor:
        settings = self.settings
        plan = self.state.plan
        law = None
        if settings.clients is None:
            law = plan.law(self.state.rounds or 1)
        return RunAuditor(
            max(2, plan.number),
            settings.unobserved_beside(plan.number),
            seed=self.state.seed,
            delta=settings.delta,
            server=self.wrapped.server(),
            planned=plan.planned,
            client=law,
            kind=settings.canary_kind,
            faults=self.faults.book,
        )

    def begin(
        self, arrays: ArrayRecord, layout: Layout, plan: AuditPlan
    ) -> None:
        """Store the initial model, its layout and the plan of the audit."""
        start = layout.flatten(arrays)
        state = self.state
        state.plan = plan
        if self.settings.checkpoint is not None:
            state.models = {0: digest(start)}
        self.auditor = self._new_auditor()
        self.auditor.begin(start)
        state.layout = layout
        state.whole = layout
        self.start = arrays
        self.last = start
        self.catch_up()

    def resume(self, saved: SavedAudit, arrays: ArrayRecord) -> None:
        """Continue a saved audit, whose state this recording has.

        Args:
            saved: the saved audit.
            arrays: the present model.

        Raises:
            ValueError: if the model does not fit the saved audit.
        """
        rounds_done = self.state.index
        layout = saved.layout
        self.last = layout.flatten(arrays)
        self.start = saved.start
        # Flower's FedAvgM has one array for each array of the model, after a round.
        momentum = getattr(self.wrapped.base, "momentum_vector", None)
        velocity = None
        if momentum is not None:
            arrays_of_momentum = map(np.asarray, momentum)
            by_name = dict(zip(layout.shapes, arrays_of_momentum, strict=True))
            # FedAvgM subtracts it from the model, whereas a velocity is added.
            velocity = -layout.flatten(pack(**by_name))
        start = layout.flatten(saved.start)
        self.auditor.restore(
            saved.scores,
            rounds_done,
            start=start,
            last=self.last,
            velocity=velocity,
        )
        self.seen.restore(saved.scores, rounds_done)
        if rounds_done == saved.audit.index:
            self.noise.restore(select_prefix(saved.scores, "noise."))
            self.contributions.restore(select_prefix(saved.scores, "nodes."))
            promised = select_prefix(saved.scores, "promised.")
            self.client_noise.restore(saved.full_layout, promised)

    def arrays(self) -> NamedArrays:
        """The state as named arrays, for `resume`."""
        self.catch_up()
        return (
            self.auditor.state()
            | self.seen.state(self.state.index)
            | add_prefix(self.noise.state(), "noise.")
            | add_prefix(self.contributions.state(), "nodes.")
            | add_prefix(self.client_noise.state(), "promised.")
        )

    def catch_up(self) -> None:
        """Record as lost each completed round that was not scored."""
        while self.auditor.rounds < self.state.index:
            self.auditor.observe(None, RoundFacts())

    def is_last(self, arrays: ArrayRecord | None) -> bool:
        """Whether these arrays are the newest model."""
        layout = self.state.layout
        if layout is None or self.last is None or arrays is None:
            return False
        try:
            return np.array_equal(layout.flatten(arrays), self.last)
        except ValueError:
            return False

    def note_model(self, arrays: ArrayRecord | None) -> None:
        """Store the hash of the model after the rounds so far, if there is a checkpoint.

        Args:
            arrays: the model; ``None`` if it did not change.
        """
        models = self.state.models
        layout = self.state.whole
        if models and layout is not None:
            model = models[max(models)]
            # The model may lack arrays that canaries do not move; it is then not recognized.
            with contextlib.suppress(ValueError):
                if arrays is not None:
                    model = digest(layout.flatten(arrays))
                models[self.state.index] = model

    def release(self, arrays: ArrayRecord | None) -> Vector | None:
        """Store the model that a round released, if it is finite; otherwise add a fault.

        Returns:
            The model as a vector; ``None`` without a finite one.
        """
        text = "the strategy released no model"
        layout = self.state.layout
        if arrays and layout is not None:
            theta = layout.flatten(arrays)
            self.last_is_finite = math.isfinite(norm(theta))
            if self.last_is_finite:
                self.last = theta
                return theta
            text = "the strategy released a model with NaN or infinite entries"
        self.faults.book.add(
            self.state.index, FaultKind.NO_MODEL_RELEASED, text
        )
        return None

    def noise_fails(self) -> bool:
        """Whether the noise failed its last check; it is checked after 1, 2, 4, 8, … rounds.

        Each check has some probability of a false alarm, and takes long after many rounds.
        """
        is_power_of_two = self.state.index.bit_count() == 1
        if is_power_of_two or self._noise_fails is None:
            _, faults = self.noise.findings()
            self._noise_fails = bool(faults)
        return self._noise_fails

    def noise_multipliers(self) -> tuple[float | None, float | None]:
        """The claimed noise multiplier, and that of the sum alone; ``None`` if not known.

        See `Wrapped.noise_multipliers`.
        """
        z = self.settings.noise_multiplier
        if z is not None:
            return z, z
        averages = self.state.averages(self.wrapped)
        return self.wrapped.noise_multipliers(averages=averages)

    def choose_arrays(
        self,
        current: RoundState,
        answers: Sequence[Vector],
        kind: ReplyKind | None,
    ) -> None:
        """Choose the arrays that canaries do not move.

        The first choice is for the run: the arrays that are no free parameters. Later choices
        are for their round alone: the arrays that no answer moved.

        Args:
            current: the round, which stores the choice.
            answers: the answers of clients drawn at random, each of shape ``(dim,)``.
            kind: the kind of the answers.

        Raises:
            ValueError: if there are no answers, or canaries could move fewer than two entries.
        """
        if not answers:
            raise ValueError("Expected a reply that can be read.")
        models = answers
        if base_of(kind, current.before) is None:
            models = [current.before + update for update in answers]
        layout = current.layout
        before = layout.split(current.before)
        arrays = [layout.split(model) for model in models]
        if not self.state.settled:
            self._leave_out(current, not_free(before, arrays))
            return
        names = unmoved(before, arrays)
        current.moved_norm = math.sqrt(layout.without(names).dim / layout.dim)
        current.unmoved = names
        self.state.unmoved |= names

    def _leave_out(
        self, current: RoundState, left_out: Collection[str]
    ) -> None:
        """Leave these arrays out from now on; a new auditor scores canaries without them."""
        layout = current.layout.without(left_out)
        if left_out and self.start is not None:
            before = layout.flatten(current.arrays)
            auditor = self._new_auditor()
            auditor.begin(layout.flatten(self.start))
            # No canary took part in the earlier rounds.
            for _ in range(self.state.index):
                auditor.observe(before, RoundFacts())
            self._score_with(auditor)
            self.state.layout = layout
            self.last = before
            current.layout = layout
            current.before = before
            self.state.plan = dataclasses.replace(
                self.state.plan, left_out=layout.left_out
            )
            logger.info("Audit: %s", self.state.plan.sentences()[-1])
        self.state.settled = True
