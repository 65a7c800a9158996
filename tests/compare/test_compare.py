"""A comparison: its plan, its measurements and its rows."""

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
from fl_epe.asymptotics import limit_record
from fl_epe.auditing import AuditRecord
from fl_epe.compare import (
    Plan,
    carry_out,
    failed_of,
    measure,
    notes_of,
    read_plan,
    rows_of,
    write_comparison,
)
from fl_epe.compare.page import cells_of
from fl_epe.reporting import number
from fl_epe.schedules import ShuffledEpochs

SMALL = Plan(
    schedules=("cyclic", "check-in", "min-separation:separation=9"),
    noise_multipliers=(0.3, 0.6),
    participations=(1, 2),
    rounds=16,
    clients=200,
    num_canaries=50,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `SMALL` finds, and the file of its results: measured once for all tests."""
    folder = tmp_path_factory.mktemp("measured")
    found = carry_out(SMALL, folder)
    return found, (folder / "results.jsonl").read_text()


@pytest.fixture
def small(measured, tmp_path):
    """What `SMALL` finds, and a folder in which it is found already."""
    (tmp_path / "results.jsonl").write_text(measured[1])
    return dict(measured[0]), tmp_path


def _rows(plan, directory):
    return rows_of(plan, carry_out(plan, directory))


class TestPlan:
    def test_round_trip(self):
        plan = dataclasses.replace(SMALL, task="digits", clients=None, settings={"local_epochs": 1})
        assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan

    def test_cells_are_the_whole_grid(self):
        plan = dataclasses.replace(SMALL, replicates=3)
        cells = list(plan.cells())
        assert len(cells) == len(set(map(plan.key, cells))) == 3 * 2 * 2 * 3

    def test_a_key_knows_what_decides_the_result(self):
        cell = next(SMALL.cells())
        for other in (
            dataclasses.replace(
                SMALL, schedules=("cyclic", "epochs"), replicates=5, confidence=0.9
            ),
            dataclasses.replace(SMALL, noise_multipliers=(0.1, 0.3), participations=(1,)),
        ):
            assert other.key(cell) == SMALL.key(cell)
        for change in ({"rounds": 17}, {"seed": 1}, {"clients": 300}, {"decay": 0.9}):
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
            pytest.param({"decay": 0}, "decay=0", id="decay=0"),
            pytest.param({"seed": -1}, "seed=-1", id="seed=-1"),
            pytest.param({"settings": {"local_epochs": 1}}, "with a task", id="with-a-task"),
            pytest.param({"task": "digits", "settings": {"clients": 5}}, "clients", id="clients"),
            pytest.param({"task": "digits", "clients": 5}, "clients=5", id="clients=5"),
            pytest.param({"task": "digits", "like": "somewhere"}, "somewhere", id="somewhere"),
            pytest.param({"settings": 3}, "settings=3", id="settings=3"),
            pytest.param({"typo": 3}, "typo", id="typo"),
        ],
    )
    def test_errors(self, values, message):
        with pytest.raises(ValueError, match=message):
            Plan.from_dict(values)

    def test_names_of_the_first_version_are_read(self):
        old = {"presentations": [3], "repeats": 2, "canaries": 9, "task": "digits"}
        plan = Plan.from_dict({**old, "settings": {"clients_per_round": 4}})
        assert (plan.participations, plan.replicates, plan.num_canaries) == ((3,), 2, 9)

    def test_keys_are_those_of_the_first_version(self):
        """What an earlier version measured is found, and what it would draw is drawn."""
        plan = Plan(("epochs",), (0.1,), (4,), num_canaries=50)
        assert [plan.key(cell) for cell in plan.cells()] == ["f26192e7bce59bbc564f93d4"]

    def test_toml(self, tmp_path):
        path = tmp_path / "plan.toml"
        path.write_text('schedules = ["cyclic"]\nnoise-multipliers = [0.5]\n')
        plan = Plan.from_dict(read_plan(path))
        assert (plan.schedules, plan.noise_multipliers) == (("cyclic",), (0.5,))
        path.write_text("schedules = [")
        with pytest.raises(ValueError, match="TOML"):
            read_plan(path)
        with pytest.raises(FileNotFoundError, match=r"missing\.toml"):
            read_plan(tmp_path / "missing.toml")


class TestMeasurements:
    def test_what_is_there_is_not_measured_again(self, small, monkeypatch):
        first, tmp_path = small
        assert len(first) == 12
        monkeypatch.setattr("fl_epe.compare.runner.measure", None)
        assert carry_out(SMALL, tmp_path) == first
        monkeypatch.undo()
        asked = []
        plan = dataclasses.replace(SMALL, noise_multipliers=(0.3, 0.6, 0.9))
        more = carry_out(plan, tmp_path, on_cell=lambda done, total: asked.append((done, total)))
        assert asked == [(done, 18) for done in range(12, 19)]
        assert {cell: more[cell] for cell in first} == first

    def test_a_line_cut_off_is_measured_again(self, small):
        first, tmp_path = small
        path = tmp_path / "results.jsonl"
        whole = path.read_text()
        path.write_text(whole[:-30])
        assert carry_out(SMALL, tmp_path) == first
        assert path.read_text() == whole

    def test_another_broken_line_is_refused(self, tmp_path):
        (tmp_path / "results.jsonl").write_text("{}\n")
        with pytest.raises(ValueError, match="line 1 of"):
            carry_out(SMALL, tmp_path)

    def test_workers_have_no_influence(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), noise_multipliers=(0.3,))
        alone = carry_out(plan, tmp_path / "alone")
        assert carry_out(plan, tmp_path / "two", workers=2) == alone
        with pytest.raises(ValueError, match="workers=0"):
            carry_out(plan, tmp_path, workers=0)

    def test_what_cannot_be_is_said(self, small):
        rows = rows_of(SMALL, small[0])
        impossible = [row for row in rows if row.skipped]
        assert {(row.schedule, row.participations) for row in impossible} == {
            ("min-separation:separation=9", 2)
        }
        assert all("separation" in str(row.skipped) for row in impossible)

    @pytest.mark.slow
    def test_training_goes_on_and_keeps_its_record(self, tmp_path):
        plan = Plan(
            schedules=("epochs",),
            noise_multipliers=(0.5,),
            participations=(1,),
            task="digits",
            rounds=2,
            num_canaries=6,
            settings={"clients_per_round": 2, "local_epochs": 1, "clipping": "fixed"},
            task_options={"num_clients": 12},
        )
        (row,) = _rows(plan, tmp_path)
        assert row.accuracy is not None
        (path,) = Path(tmp_path, "cells").glob("*/record.npz")
        record = AuditRecord.load(path)
        assert record.provenance.config["participation"] == "epochs"
        (tmp_path / "results.jsonl").unlink()
        assert _rows(plan, tmp_path) == [row]  # from the record: training is not repeated

    def test_like_a_run(self, tmp_path):
        norms = np.geomspace(1, 5, 16)
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, clip_norms=norms, num_canaries=9)
        record.save(tmp_path / "run" / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None)
        like = dataclasses.replace(plan, like=str(tmp_path / "run"), num_canaries=200)
        rows = _rows(like, tmp_path / "like")
        # With norms that move, the round matters: the last ones are five times as loud.
        still = _rows(dataclasses.replace(like, like=None, rounds=16), tmp_path / "still")
        assert rows[0].final.most_exposed > 1.3 * still[0].final.most_exposed
        assert rows[0].every_round.most_exposed == pytest.approx(
            rows[0].every_round.analytical.epsilon
        )

    def test_like_a_run_of_few_clients_all_of_them_are_canaries(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record = record.with_values(config={**record.provenance.config, "clients": 60})
        record.save(tmp_path / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None, num_canaries=None)
        plan = dataclasses.replace(plan, clients=None)
        rows = _rows(dataclasses.replace(plan, like=str(tmp_path)), tmp_path / "like")
        assert [row.skipped for row in rows] == [None] * len(rows)

    def test_like_a_run_that_does_not_fit(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record.save(tmp_path / "sgd" / "record.npz")
        adam = record.with_values(server={"name": "adam", "learning_rate": 0.1})
        adam.save(tmp_path / "adam" / "record.npz")
        for name, rounds, message in (("sgd", 17, "rounds=17 to be 16"), ("adam", 16, "to be sgd")):
            plan = dataclasses.replace(
                SMALL, schedules=("cyclic",), like=str(tmp_path / name), rounds=rounds
            )
            rows = _rows(plan, tmp_path / f"of {name}")
            assert all(message in row.skipped for row in rows)


class TestRows:
    def test_pooled_repeats_narrow_the_interval(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), noise_multipliers=(0.3,))
        for one, four in zip(
            _rows(plan, tmp_path),
            _rows(dataclasses.replace(plan, replicates=4), tmp_path),
            strict=True,
        ):
            width = (one.every_round.high - one.every_round.low) / 2
            pooled = (four.every_round.high - four.every_round.low) / 2
            assert pooled == pytest.approx(width / 2, rel=0.15)
            assert four.replicates == 4

    def test_rows_hold_the_exact_values(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("epochs",), replicates=2, confidence=0.999)
        for row in _rows(plan, tmp_path):
            count, z = row.participations, row.noise_multiplier
            known = epsilon_two_gaussians(0, 1, np.sqrt(count) / z, 1, row.delta)
            assert row.every_round.low < known < row.every_round.high
            assert row.every_round.analytical.epsilon == pytest.approx(known)
            assert row.every_round.most_exposed == pytest.approx(known)
            assert not row.above
            assert row.unknown_rounds.epsilon < row.every_round.epsilon

    @pytest.mark.slow
    def test_a_planted_violation_is_found(self, tmp_path, monkeypatch):
        """A schedule that lets everybody in twice as often as it says."""

        @dataclasses.dataclass(frozen=True)
        class Cheat(ShuffledEpochs):
            def cohorts(self, population, rng):
                return ShuffledEpochs(self.rounds, 2 * self.epochs).cohorts(population, rng)

        plan = dataclasses.replace(SMALL, schedules=("cyclic",), num_canaries=200)
        assert not any(row.above for row in _rows(plan, tmp_path / "honest"))
        monkeypatch.setattr(
            "fl_epe.compare.measure.make_schedule",
            lambda kind, rounds, participations: Cheat(rounds, participations),
        )
        rows = _rows(plan, tmp_path / "cheat")
        assert all(row.every_round.above for row in rows)
        write_comparison(plan, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert "Warning: 4 of 4 rows" in page

    @pytest.mark.slow
    def test_honest_schedules_stay_below_their_analytical_epsilon(self, tmp_path):
        """At most the interval's error rate of many seeds lies above.

        `simulations/studies/schedule_seeds.py` does the same for Poisson, rounds unknown, and 200
        seeds.
        """
        plan = dataclasses.replace(
            SMALL,
            schedules=("cyclic",),
            noise_multipliers=(0.5,),
            participations=(2,),
            replicates=100,
        )
        above = {"final": 0, "every_round": 0}
        for cell, result in carry_out(plan, tmp_path).items():
            (row,) = rows_of(plan, {cell: result})
            for name in above:
                estimate = getattr(row, name)
                above[name] += estimate.low > estimate.analytical.epsilon
        rate = (1 - plan.confidence) / 2
        assert max(above.values()) <= 100 * rate + 3 * np.sqrt(100 * rate)


def test_measure_is_pure(tmp_path):
    cell = next(SMALL.cells())
    assert measure.measure(SMALL, cell, tmp_path) == measure.measure(SMALL, cell, tmp_path)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """What the plan of `TestMostExposed` finds."""
    return carry_out(TestMostExposed.PLAN, tmp_path_factory.mktemp("exposed"))


class TestMostExposed:
    """Above the analytical ε where participations are drawn, and explained there."""

    PLAN = dataclasses.replace(
        SMALL,
        schedules=("cyclic", "fixed-size"),
        noise_multipliers=(0.3,),
        participations=(2,),
        num_canaries=200,
    )

    @pytest.mark.slow
    def test_it_is_marked_and_explained(self, exposed):
        cyclic, drawn = rows = rows_of(self.PLAN, exposed)
        assert not cyclic.exposed_above
        assert drawn.exposed_above
        assert not drawn.above
        most = gaussian_epsilon(0.3, drawn.delta, drawn.most_participations)
        assert drawn.every_round is not None
        epsilon, exposed_most = drawn.every_round.analytical.epsilon, drawn.every_round.most_exposed
        assert epsilon is not None
        assert exposed_most is not None
        assert epsilon < exposed_most
        assert drawn.every_round.most_exposed == pytest.approx(most)
        cells = [cells_of(row) for row in rows]
        assert [any("†" in cell for cell in row) for row in cells] == [False, True]
        assert cells[1][5].endswith(" †")
        (note,) = [note for note in notes_of(self.PLAN, rows) if note.startswith("†")]
        assert f"took part {drawn.most_participations} times where 2 were expected" in note
        assert f"is {number(most)}." in note

    @pytest.mark.slow
    def test_no_mark_without_a_need(self, exposed):
        plan = dataclasses.replace(self.PLAN, schedules=("cyclic",))
        rows = rows_of(plan, {cell: exposed[cell] for cell in plan.cells()})
        assert not any("†" in note for note in notes_of(plan, rows))

    def test_a_limit_on_participations_that_is_broken_is_not_explained_away(self, exposed):
        row = rows_of(self.PLAN, exposed)[0]
        assert row.every_round is not None
        exposed = dataclasses.replace(row.every_round, most_exposed=1e6)
        assert not exposed.exposed_above

    def test_results_of_earlier_versions(self, exposed):
        results = copy.deepcopy(exposed)
        rows = rows_of(self.PLAN, results)
        for result in results.values():
            del result["diverged"]
            for bound in result["guarantees"]:
                del bound["averages"]
        assert rows_of(self.PLAN, results) == rows


class TestNotMeasured:
    """Cells without an ε, or of a model that diverged: named, and never a number."""

    PLAN = dataclasses.replace(
        SMALL, schedules=("cyclic",), noise_multipliers=(0.3,), participations=(1, 2), replicates=2
    )
    REASON = "no canary took part in 16 rounds"

    def _rows(self, tmp_path, **failure):
        results = carry_out(self.PLAN, tmp_path)
        cell = next(iter(results))
        results[cell] = failure if "not_measured" in failure else results[cell] | failure
        return rows_of(self.PLAN, results)

    def test_a_cell_without_an_epsilon(self, tmp_path):
        first, second = rows = self._rows(tmp_path, not_measured=self.REASON)
        assert first.not_measured == f"{self.REASON} (1 of 2 measurements)"
        assert (first.final, first.every_round, first.unknown_rounds) == (None, None, None)
        assert second.failed is None
        write_comparison(self.PLAN, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert page.count(f"not measured: {self.REASON} (1 of 2") >= 2  # in a table and a note
        assert 'role="alert">Of 2 rows, 1 not measured: see the notes.</p>' in page
        written = json.loads((tmp_path / "compare.json").read_text())["rows"]
        assert written[0]["not_measured"] == first.not_measured
        assert written[0]["final"] is None
        assert (written[1]["not_measured"], written[1]["diverged"]) == (None, None)

    def test_a_cell_that_diverged_keeps_its_numbers(self, tmp_path):
        first, _ = rows = self._rows(tmp_path, diverged=["the training loss is nan at the end"])
        assert first.failed == (
            "diverged: the training loss is nan at the end (1 of 2 measurements)"
        )
        assert first.final is not None
        assert failed_of(rows) == "Of 2 rows, 1 diverged: see the notes."
        assert notes_of(self.PLAN, rows)[0].endswith(f": {first.failed}.")

    def test_measure_says_why(self, tmp_path, monkeypatch):
        cell = next(self.PLAN.cells())
        limit = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        nobody = limit.with_values(presence=np.zeros((16, 9), bool))
        monkeypatch.setattr("fl_epe.compare.measure.limit_record", lambda *_, **__: nobody)
        assert measure.measure(self.PLAN, cell, tmp_path) == {"not_measured": self.REASON}
