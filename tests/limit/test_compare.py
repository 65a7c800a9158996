"""A comparison: its plan, its measurements and its rows."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import scipy

from fl_epe.accounting import (
    ExpectedScoreLaw,
    epsilon_two_gaussians,
    gaussian_epsilon,
    known_expected_score_epsilon,
    upper_bounds,
)
from fl_epe.auditing import AuditRecord, NotMeasured, ServerStep
from fl_epe.limit import ComparisonPlan, carry_out, limit_record, write_comparison
from fl_epe.limit.canaries_needed import shift_of
from fl_epe.limit.measure import Row
from fl_epe.limit.page import cells_of, failed_of, finding_of, notes_of
from fl_epe.limit.runner import Scored, Training, pooled
from fl_epe.schedules import ShuffledEpochs

SMALL = ComparisonPlan(
    schedules=("cyclic", "check-in", "min-separation:separation=9"),
    noise_multipliers=(0.3, 0.6),
    participations=(1, 2),
    rounds=16,
    clients=200,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The rows of `SMALL`, measured once for all tests."""
    return carry_out(SMALL, tmp_path_factory.mktemp("measured"))


def _row(rows, cell):
    (found,) = (row for row in rows if _place(row) == cell.place)
    return found


def _place(row):
    return row.schedule, row.noise_multiplier, row.participations


class TestPlan:
    def test_round_trip(self):
        plan = dataclasses.replace(SMALL, task="digits", clients=None, settings={"local_epochs": 1})
        assert ComparisonPlan(**json.loads(json.dumps(dataclasses.asdict(plan)))) == plan

    def test_cells_are_the_whole_grid(self):
        plan = dataclasses.replace(SMALL, replicates=3, task="digits", clients=None)
        cells = list(plan.cells())
        assert len(cells) == len(set(map(plan.key, cells))) == 3 * 2 * 2 * 3

    def test_a_key_knows_what_decides_the_result(self):
        cell = next(SMALL.cells())
        for other in (
            dataclasses.replace(SMALL, schedules=("cyclic", "epochs")),
            dataclasses.replace(SMALL, noise_multipliers=(0.1, 0.3), participations=(1,)),
        ):
            assert other.key(cell) == SMALL.key(cell)
        for change in ({"rounds": 17}, {"seed": 1}, {"clients": 300}):
            assert dataclasses.replace(SMALL, **change).key(cell) != SMALL.key(cell)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            pytest.param({"schedules": []}, "schedules", id="schedules"),
            pytest.param({"schedules": "epochs"}, "list", id="list"),
            pytest.param({"schedules": ["nonsense"]}, "nonsense", id="nonsense"),
            pytest.param(
                {"noise_multipliers": [0.0]}, "noise_multipliers=0.0", id="noise_multipliers=0.0"
            ),
            pytest.param({"participations": [-1]}, "participations=-1", id="participations=-1"),
            pytest.param({"replicates": 0}, "replicates=0", id="replicates=0"),
            pytest.param({"rounds": 1.5}, "rounds=1.5", id="rounds=1.5"),
            pytest.param({"delta": 1}, "delta=1", id="delta=1"),
            pytest.param({"confidence": 1.0}, "confidence=1", id="confidence=1"),
            pytest.param({"seed": -1}, "seed=-1", id="seed=-1"),
            pytest.param({"settings": {"local_epochs": 1}}, "with a task", id="with-a-task"),
            pytest.param({"replicates": 9}, "replicates=9 only", id="replicates=9"),
            pytest.param({"server_momentum": 1}, "server_momentum=1", id="server_momentum=1"),
            pytest.param({"task": "digits", "settings": {"clients": 5}}, "clients", id="clients"),
            pytest.param({"task": "digits", "clients": 5}, "clients=5", id="clients=5"),
            pytest.param({"task": "digits", "like": "somewhere"}, "somewhere", id="somewhere"),
        ],
    )
    def test_errors(self, values, message):
        with pytest.raises(ValueError, match=message):
            ComparisonPlan(**values)

    def test_trainings_are_found_whatever_is_made_of_them(self):
        plan = ComparisonPlan(("epochs",), (0.1,), (4,), task="digits")
        more = dataclasses.replace(plan, replicates=2, confidence=0.9)
        assert set(map(plan.key, plan.cells())) < set(map(more.key, more.cells()))


class TestMeasurements:
    def test_a_row_for_each_cell(self, small):
        asked = []
        plan = dataclasses.replace(SMALL, schedules=("cyclic",))
        rows = carry_out(plan, Path("unused"), on_cell=lambda *counts: asked.append(counts))
        assert asked == [(done, 4) for done in range(5)]
        assert rows == [_row(small, cell) for cell in plan.cells()]

    def test_workers_have_no_influence(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), noise_multipliers=(0.3,))
        alone = carry_out(plan, tmp_path)
        assert carry_out(plan, tmp_path, workers=2) == alone

    def test_what_cannot_be_is_said(self, small):
        impossible = [row for row in small if row.skipped]
        assert {(row.schedule, row.participations) for row in impossible} == {
            ("min-separation:separation=9", 2)
        }
        assert all("separation" in str(row.skipped) for row in impossible)

    @pytest.mark.slow
    def test_training_goes_on_and_keeps_its_record(self, tmp_path):
        plan = ComparisonPlan(
            schedules=("epochs",),
            noise_multipliers=(0.5,),
            participations=(1,),
            task="digits",
            rounds=2,
            settings={
                "num_canaries": 6,
                "clients_per_round": 2,
                "local_epochs": 1,
                "clipping": "fixed",
            },
            task_options={"num_clients": 12},
        )
        (row,) = carry_out(plan, tmp_path)
        assert row.accuracy is not None
        (path,) = Path(tmp_path, "cells").glob("*/record.npz")
        record = AuditRecord.load(path)
        assert record.design.schedule == "epochs"
        assert carry_out(plan, tmp_path) == [row]  # from the record: training is not repeated

    def test_like_a_run(self, tmp_path):
        norms = np.geomspace(1, 5, 16)
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, clip_norms=norms, num_canaries=9)
        record.save(tmp_path / "run" / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None)
        like = dataclasses.replace(plan, like=str(tmp_path / "run"))
        rows = carry_out(like, tmp_path / "like")
        # With norms that move, the round matters: the last ones are five times as loud.
        still = carry_out(dataclasses.replace(like, like=None, rounds=16), tmp_path / "still")
        moving, constant = rows[0].final.worst_case, still[0].final.worst_case
        assert moving is not None
        assert constant is not None
        assert moving > 1.3 * constant
        assert rows[0].every_round.worst_case == pytest.approx(
            rows[0].every_round.analytical.epsilon
        )

    def test_like_a_run_of_few_clients_all_of_them_are_canaries(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record = record.with_values(num_clients=60)
        record.save(tmp_path / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None)
        plan = dataclasses.replace(plan, clients=None)
        rows = carry_out(dataclasses.replace(plan, like=str(tmp_path)), tmp_path / "like")
        assert [row.skipped for row in rows] == [None] * len(rows)

    def test_like_a_run_that_does_not_fit(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record.save(tmp_path / "sgd" / "record.npz")
        adam = record.with_values(server=ServerStep("adam", np.full(16, 0.1)))
        adam.save(tmp_path / "adam" / "record.npz")
        for name, rounds, message in (("sgd", 17, "rounds=17 to be 16"), ("adam", 16, "to be sgd")):
            plan = dataclasses.replace(
                SMALL, schedules=("cyclic",), like=str(tmp_path / name), rounds=rounds
            )
            rows = carry_out(plan, tmp_path / f"of {name}")
            assert all(message in str(row.skipped) for row in rows)


class TestRows:
    def test_rows_hold_the_exact_values(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("epochs",))
        for row in carry_out(plan, tmp_path):
            count, z = row.participations, row.noise_multiplier
            known = epsilon_two_gaussians(0, 1, np.sqrt(count) / z, 1, row.delta)
            for epsilon in (row.every_round.epsilon, row.every_round.high):
                assert epsilon == pytest.approx(known)
            assert row.every_round.analytical.epsilon == pytest.approx(known)
            assert row.every_round.worst_case == pytest.approx(known)
            assert row.unknown_rounds.epsilon < row.every_round.epsilon
            assert not row.above

    def test_a_small_epsilon_is_exact(self, tmp_path):
        plan = ComparisonPlan(("poisson",), (20,), (1,), server_momentum=0.0)
        (row,) = carry_out(plan, tmp_path)
        pmf = scipy.stats.binom.pmf(np.arange(513), 512, 1 / 512)
        sizes = np.arange(513) / 20 / np.sqrt(512)
        exact = known_expected_score_epsilon(sizes, row.delta, weights=pmf)
        assert row.final.epsilon == pytest.approx(exact, rel=1e-6)
        assert row.replicates == 1

    def test_a_cap_that_refuses_nobody_changes_nothing(self, tmp_path):
        plan = ComparisonPlan(("poisson", "capped:of=poisson,per_run=30"), (0.5,), (2,), rounds=64)
        plain, capped = carry_out(plan, tmp_path)
        for name in ("final", "every_round"):
            one, other = getattr(plain, name), getattr(capped, name)
            assert other.epsilon == pytest.approx(one.epsilon, rel=1e-3)
            assert other.worst_case == pytest.approx(one.worst_case, rel=1e-3)
            assert other.analytical.epsilon == pytest.approx(one.analytical.epsilon, rel=1e-6)
        assert capped.analytical_unknown_rounds == plain.analytical_unknown_rounds

    def test_the_worst_case_is_of_the_clients_that_were_asked_for(self, tmp_path):
        plan = ComparisonPlan(("poisson",), (1.0,), (4,), delta=1e-5, server_momentum=0.0)
        for clients in (500, 10**6):
            (row,) = carry_out(dataclasses.replace(plan, clients=clients), tmp_path / str(clients))
            most = scipy.stats.binom.isf(0.05 / clients, 512, 4 / 512)
            expected = epsilon_two_gaussians(0, 1, most / np.sqrt(512), 1, 1e-5)
            assert row.clients == clients
            assert row.final.worst_case == pytest.approx(expected, rel=1e-6)
            assert row.most_participations == most

    def test_ties_are_called_ties(self, tmp_path):
        plan = ComparisonPlan(("epochs", "balls-in-bins", "poisson"), (1.0,), (4,))
        found = finding_of(plan, carry_out(plan, tmp_path))
        assert "least under epochs and balls-in-bins (ε ≤ 0.578, a tie)" in found
        assert "worst case of 10,000 clients" in found
        same = dataclasses.replace(plan, schedules=("epochs", "balls-in-bins"))
        assert "the same ε under all" in finding_of(same, carry_out(same, tmp_path))

    def test_what_has_no_law_is_drawn_and_said(self, tmp_path):
        spec = "capped:of=poisson,per_window=1,window=4"
        plan = dataclasses.replace(SMALL, schedules=(spec, "poisson"), participations=(2,))
        rows = carry_out(plan, tmp_path)
        (first, second), plain = rows[:2], rows[2:]
        assert first.final.simulated
        assert not any(row.final.simulated for row in plain)
        # The same clients at every noise: expected scores are in proportion to 1/z.
        means = [shift_of(row.final.mean, row.delta) for row in (first, second)]
        assert means[0] / means[1] == pytest.approx(
            second.noise_multiplier / first.noise_multiplier, rel=1e-6
        )
        assert first.final.low < first.final.epsilon < first.final.high
        assert cells_of(first)[0].startswith("~")
        (note,) = [note for note in notes_of(plan, rows) if note.startswith("“~”")]
        assert spec in note
        assert "poisson, so" not in note.replace(spec, "")

    @pytest.mark.parametrize("rounds", [4, 40])
    def test_everybody_in_every_round_is_one_number(self, rounds, tmp_path):
        kinds = ("epochs", "cyclic", "balls-in-bins", "poisson", "fixed-size", "check-in",
            "min-separation:separation=1", "time-of-day:rounds_per_day=4,hours=24",
            "capped:of=poisson,per_run=40")  # fmt: skip
        plan = ComparisonPlan(
            kinds, (1.0,), (rounds,), rounds=rounds, clients=100, server_momentum=0.0
        )
        for row in carry_out(plan, tmp_path):
            exact = gaussian_epsilon(1.0, row.delta, rounds)
            for part in (row.final, row.every_round, row.unknown_rounds):
                assert part.epsilon == pytest.approx(exact, rel=1e-6)
                assert part.analytical.epsilon == pytest.approx(exact, rel=1e-6)

    def test_trainings_are_pooled_before_any_epsilon(self):
        """Scales of both signs: ε of their mean, and not the mean of what is left above 0."""
        schedule, law = ShuffledEpochs(2, 1), ExpectedScoreLaw.of([0.1])
        plan = ComparisonPlan(("epochs",), (1.0,), (1,), replicates=2, task="digits")
        trainings = []
        for scale in (2.0, -1.0):
            scored = Scored(0.1 * scale, 1.0, 50, scale, 0.5, law)
            energy = np.full(2, 0.01)
            trainings.append(Training(schedule, 20, 1e-3, 1.0, 1, scored, scored, energy, None))
        row = pooled(plan, next(plan.cells()), trainings)
        exact = epsilon_two_gaussians(0, 1, 0.05, 1, 1e-3)
        assert row.final.epsilon == pytest.approx(exact)
        assert row.final.mean == pytest.approx(exact)
        assert row.unknown_rounds.epsilon < row.every_round.epsilon
        assert row.replicates == 2
        failed = dataclasses.replace(trainings[0], diverged=("the loss is nan",))
        row = pooled(plan, next(plan.cells()), [failed, trainings[1]])
        assert row.failed == "diverged: the loss is nan (1 of 2 measurements)"
        assert row.final is not None

    def test_what_lies_above_its_bound_is_found(self, small, tmp_path, monkeypatch):
        assert not any(row.above for row in small)

        def too_small(*arguments):
            bounds = upper_bounds(*arguments)
            return tuple(dataclasses.replace(b, epsilon=0.9 * b.epsilon) for b in bounds)

        monkeypatch.setattr("fl_epe.limit.measure.upper_bounds", too_small)
        rows = [row for row in carry_out(SMALL, tmp_path) if row.skipped is None]
        assert all(row.every_round.above for row in rows)
        write_comparison(SMALL, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert f"Warning: {len(rows)} of {len(rows)} rows" in page


class TestNotMeasured:
    """Cells without an ε, or of a model that diverged: named, and never a number."""

    PLAN = dataclasses.replace(
        SMALL, schedules=("cyclic",), noise_multipliers=(0.3,), participations=(1, 2)
    )
    REASON = "no canary took part in 16 rounds"

    def test_a_cell_without_an_epsilon(self, tmp_path, small, monkeypatch):
        def measure(plan, cell):
            if cell.participations == 1:
                raise NotMeasured(self.REASON)
            return _row(small, cell)

        monkeypatch.setattr("fl_epe.limit.runner.measure", measure)
        first, second = rows = carry_out(self.PLAN, tmp_path)
        assert first.not_measured == self.REASON
        assert (first.final, first.every_round, first.unknown_rounds) == (None, None, None)
        assert second.failed is None
        write_comparison(self.PLAN, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert page.count(f"not measured: {self.REASON}") >= 2  # in a table and a note
        assert 'role="alert">Of 2 rows, 1 not measured: see the notes.</p>' in page
        written = json.loads((tmp_path / "compare.json").read_text())["rows"]
        assert written[0]["not_measured"] == first.not_measured
        assert written[0]["final"] is None
        assert (written[1]["not_measured"], written[1]["diverged"]) == (None, None)

    def test_one_of_two_trainings_without_an_epsilon(self, tmp_path, small, monkeypatch):
        def train(plan, cell, *_):
            if cell.replicate == 1:
                raise NotMeasured(self.REASON)
            scored = Scored(0.0, 1.0, 50)
            return Training(ShuffledEpochs(2, 1), 20, 1e-3, 1.0, 1, scored, scored, None, None)

        monkeypatch.setattr("fl_epe.limit.runner.train", train)
        plan = ComparisonPlan(("epochs",), (1.0,), (1,), replicates=2, task="digits")
        (row,) = carry_out(plan, tmp_path)
        assert row == Row("epochs", 1.0, 1, not_measured=f"{self.REASON} (1 of 2 measurements)")

    def test_a_cell_that_diverged_keeps_its_numbers(self, small):
        row = dataclasses.replace(small[0], diverged="the training loss is nan at the end")
        assert row.failed == "diverged: the training loss is nan at the end"
        assert failed_of([row, small[1]]) == "Of 2 rows, 1 diverged: see the notes."
        assert notes_of(self.PLAN, [row, small[1]])[0].endswith(f": {row.failed}.")

    def test_it_is_said_why(self, tmp_path, monkeypatch):
        plan = dataclasses.replace(self.PLAN, clients=201)  # not in the cache
        monkeypatch.setattr("fl_epe.limit.measure.clients_law", lambda *_, **__: None)
        assert "no law in closed form" in str(carry_out(plan, tmp_path)[0].not_measured)
