"""A comparison: its plan, its measurements and its rows."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import scipy

from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
from fl_epe.auditing import (
    Analytical,
    AuditedClient,
    AuditRecord,
    NotMeasured,
    ServerStep,
    answers,
)
from fl_epe.limit import (
    ClientEpsilon,
    ComparisonPlan,
    carry_out,
    expected_record,
    limit_record,
    print_comparison,
    worst_client,
    write_comparison,
)
from fl_epe.limit.client import expected_epsilon
from fl_epe.limit.measure import Row
from fl_epe.limit.page import (
    best_for_worst_case,
    failures_of,
    notes_of,
    tables_of,
)
from fl_epe.limit.plan import DEFAULT_SCHEDULES
from fl_epe.limit.runner import averaged
from fl_epe.reporting import Terminal, number
from fl_epe.schedules import ShuffledEpochs, make_schedule

SMALL = ComparisonPlan(
    schedules=("cyclic", "poisson", "min-separation:separation=9"),
    noise_multipliers=(0.3, 0.6),
    participations=(1, 2),
    rounds=16,
    clients=200,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The rows of `SMALL`, measured once for all tests."""
    return carry_out(SMALL, tmp_path_factory.mktemp("measured"))


def training(*answers):
    return Row("epochs", 1.0, 1, 1e-3, 20, answers)


def _row(rows, cell):
    (found,) = (row for row in rows if _place(row) == cell.combination)
    return found


def _place(row):
    return row.schedule, row.noise_multiplier, row.participations


class TestPlan:
    def test_round_trip(self):
        plan = dataclasses.replace(
            SMALL, task="digits", clients=None, settings={"local_epochs": 1}
        )
        assert (
            ComparisonPlan(**json.loads(json.dumps(dataclasses.asdict(plan))))
            == plan
        )

    def test_cells_are_the_whole_grid(self):
        plan = dataclasses.replace(
            SMALL, replicates=3, task="digits", clients=None
        )
        cells = list(plan.cells())
        assert len(cells) == len(set(map(plan.key, cells))) == 3 * 2 * 2 * 3

    def test_a_key_knows_what_decides_the_result(self):
        cell = next(SMALL.cells())
        for other in (
            dataclasses.replace(SMALL, schedules=("cyclic", "epochs")),
            dataclasses.replace(
                SMALL, noise_multipliers=(0.1, 0.3), participations=(1,)
            ),
        ):
            assert other.key(cell) == SMALL.key(cell)
        for change in ({"rounds": 17}, {"seed": 1}, {"clients": 300}):
            assert dataclasses.replace(SMALL, **change).key(cell) != SMALL.key(
                cell
            )

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            pytest.param({"schedules": []}, "schedules", id="schedules"),
            pytest.param({"schedules": "epochs"}, "list", id="list"),
            pytest.param(
                {"schedules": ["nonsense"]}, "nonsense", id="nonsense"
            ),
            pytest.param(
                {"noise_multipliers": [0.0]},
                "noise_multipliers=0.0",
                id="noise_multipliers=0.0",
            ),
            pytest.param(
                {"participations": [-1]},
                "participations=-1",
                id="participations=-1",
            ),
            pytest.param({"replicates": 0}, "replicates=0", id="replicates=0"),
            pytest.param({"rounds": 1.5}, "rounds=1.5", id="rounds=1.5"),
            pytest.param({"delta": 1}, "delta=1", id="delta=1"),
            pytest.param(
                {"confidence": 1.0}, "confidence=1", id="confidence=1"
            ),
            pytest.param({"seed": -1}, "seed=-1", id="seed=-1"),
            pytest.param(
                {"settings": {"local_epochs": 1}},
                "with a task",
                id="with-a-task",
            ),
            pytest.param(
                {"replicates": 9}, "replicates=9 only", id="replicates=9"
            ),
            pytest.param(
                {"server_momentum": 1},
                "server_momentum=1",
                id="server_momentum=1",
            ),
            pytest.param(
                {"task": "digits", "settings": {"clients": 5}},
                "clients",
                id="clients",
            ),
            pytest.param(
                {"task": "digits", "clients": 5}, "clients=5", id="clients=5"
            ),
            pytest.param(
                {"task": "digits", "like": "somewhere"},
                "somewhere",
                id="somewhere",
            ),
        ],
    )
    def test_errors(self, values, message):
        with pytest.raises(ValueError, match=message):
            ComparisonPlan(**values)

    def test_trainings_are_found_whatever_is_made_of_them(self):
        plan = ComparisonPlan(("epochs",), (0.1,), (4,), task="digits")
        more = dataclasses.replace(plan, replicates=2, confidence=0.9)
        assert set(map(plan.key, plan.cells())) < set(
            map(more.key, more.cells())
        )


class TestMeasurements:
    @pytest.mark.slow
    def test_a_row_for_each_cell(self, small):
        asked = []
        plan = dataclasses.replace(SMALL, schedules=("cyclic",))
        rows = carry_out(
            plan, Path("unused"), on_cell=lambda *counts: asked.append(counts)
        )
        assert asked == [(done, 4) for done in range(5)]
        assert rows == [_row(small, cell) for cell in plan.cells()]

    @pytest.mark.slow
    def test_workers_have_no_influence(self, tmp_path):
        plan = dataclasses.replace(
            SMALL, schedules=("cyclic",), noise_multipliers=(0.3,)
        )
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
        assert carry_out(plan, tmp_path) == [
            row
        ]  # from the record: training is not repeated

    def test_like_a_run(self, tmp_path):
        norms = np.geomspace(1, 5, 16)
        record = limit_record(
            ShuffledEpochs(16, 1), 0.3, 1e-3, clip_norms=norms, num_canaries=9
        )
        record.save(tmp_path / "run" / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None)
        like = dataclasses.replace(plan, like=str(tmp_path / "run"))
        rows = carry_out(like, tmp_path / "like")
        # With norms that move, the round matters: the last ones are five times as loud.
        still = carry_out(
            dataclasses.replace(like, like=None, rounds=16), tmp_path / "still"
        )
        moving, constant = (
            found.of("worst-case", "final") for found in (rows[0], still[0])
        )
        assert moving.epsilon > 1.3 * constant.epsilon
        every = rows[0].of("worst-case", "all")
        assert every.epsilon == pytest.approx(every.theory.epsilon)

    def test_like_a_run_of_few_clients_all_of_them_are_canaries(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record = record.with_values(num_clients=60)
        record.save(tmp_path / "record.npz")
        plan = dataclasses.replace(SMALL, schedules=("cyclic",), rounds=None)
        plan = dataclasses.replace(plan, clients=None)
        rows = carry_out(
            dataclasses.replace(plan, like=str(tmp_path)), tmp_path / "like"
        )
        assert [row.skipped for row in rows] == [None] * len(rows)

    def test_like_a_run_that_does_not_fit(self, tmp_path):
        record = limit_record(ShuffledEpochs(16, 1), 0.3, 1e-3, num_canaries=9)
        record.save(tmp_path / "sgd" / "record.npz")
        adam = record.with_values(server=ServerStep("adam", np.full(16, 0.1)))
        adam.save(tmp_path / "adam" / "record.npz")
        for name, rounds, message in (
            ("sgd", 17, "rounds=17 to be 16"),
            ("adam", 16, "to be sgd"),
        ):
            plan = dataclasses.replace(
                SMALL,
                schedules=("cyclic",),
                like=str(tmp_path / name),
                rounds=rounds,
            )
            rows = carry_out(plan, tmp_path / f"of {name}")
            assert all(message in str(row.skipped) for row in rows)


class TestRows:
    def test_rows_hold_the_exact_values(self, tmp_path):
        plan = dataclasses.replace(SMALL, schedules=("epochs",))
        for row in carry_out(plan, tmp_path):
            count, z = row.participations, row.noise_multiplier
            known = epsilon_two_gaussians(
                0, 1, np.sqrt(count) / z, 1, row.delta
            )
            for client in ("median", "worst-case"):
                found = row.of(client, "all")
                assert (found.theory.knows_rounds, found.theory.adjacency) == (
                    True,
                    "zero-out",
                )
                assert found.participations == count
                for epsilon in (
                    found.low,
                    found.epsilon,
                    found.high,
                    found.theory.epsilon,
                ):
                    assert epsilon == pytest.approx(known)
            assert (
                row.of("median", "final").theory
                == row.of("median", "all").theory
            )
            assert not row.above

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "kind", ["epochs", "poisson", "min-separation:separation=3"]
    )
    def test_a_row_is_the_mean_of_what_reports_say(self, tmp_path, kind):
        """Of κ, which is 1 on average, and of the same functions of it."""
        plan = ComparisonPlan(
            (kind,), (1.0,), (4,), rounds=30, clients=120, delta=1e-5
        )
        (row,) = carry_out(plan, tmp_path)
        record = limit_record(make_schedule(kind, 30, 4), 1.0, 1e-5, beside=120,
            num_canaries=13, unobserved=2, momentum=0.9)  # fmt: skip
        for report in answers(record):
            found = row.of("median", report.adversary.sees)
            assert report.adversary.knows_rounds == found.theory.knows_rounds
            assert report.participations == found.participations
            assert report.analytical.adjacency == found.theory.adjacency
            assert report.analytical.epsilon == pytest.approx(
                found.theory.epsilon, rel=1e-6
            )
            expected = expected_epsilon(record, found.sees)
            assert found.epsilon == pytest.approx(expected, rel=0.03)
            own = expected_epsilon(record, found.sees, report.fit.scale)
            assert report.estimate.epsilon == pytest.approx(own)

    def test_a_cap_that_refuses_nobody_changes_nothing_for_the_worst_case(self):
        specs = ("poisson", "capped:of=poisson,per_run=30")
        records = []
        for schedule in (make_schedule(spec, 64, 2) for spec in specs):
            record = expected_record(schedule, 0.5, 1e-5, 1000)
            records.append(
                [
                    worst_client(record, schedule, sees, 1000)
                    for sees in ("final", "all")
                ]
            )
            # The schedule's claim rests on sampling, that of its cap on the cap.
            known = AuditedClient.of(record).secret is None
            assert known == (schedule.kind == "capped")
        for one, other in zip(*records, strict=True):
            assert other.epsilon == pytest.approx(one.epsilon, rel=1e-3)
            assert other.participations == one.participations

    @pytest.mark.parametrize("sees", ["final", "all"])
    def test_without_clip_norms_there_is_no_worst_case(self, sees):
        schedule = make_schedule("poisson", 40, 4)
        record = expected_record(schedule, 0.8, 1e-5, 1000)
        unknown = record.with_values(clip_norms=np.full(40, np.nan))
        with pytest.raises(ValueError, match="clip norms"):
            worst_client(unknown, schedule, sees, 200)

    def test_the_final_model_of_another_server_has_no_worst_case(self):
        schedule = make_schedule("poisson", 40, 4)
        record = expected_record(schedule, 0.8, 1e-5, 1000)
        adam = record.with_values(server=ServerStep("adam"))
        with pytest.raises(ValueError, match="SGD"):
            worst_client(adam, schedule, "final", 200)

    def test_the_worst_case_is_of_the_clients_that_were_asked_for(self):
        schedule = make_schedule("poisson", 512, 4)
        record = expected_record(schedule, 1.0, 1e-5, 1000)
        for clients in (500, 10**6):
            most = scipy.stats.binom.isf(0.05 / clients, 512, 4 / 512)
            expected = epsilon_two_gaussians(0, 1, most / np.sqrt(512), 1, 1e-5)
            found = worst_client(record, schedule, "final", clients)
            assert found.epsilon == pytest.approx(expected, rel=1e-6)
            assert found.participations == most
            assert found.theory.epsilon == pytest.approx(
                gaussian_epsilon(1.0, 1e-5, int(most))
            )

    def test_ties_are_called_ties(self, small):
        rows = [
            dataclasses.replace(small[0], schedule=name)
            for name in ("epochs", "cyclic:a=1")
        ]
        plan = dataclasses.replace(
            SMALL, noise_multipliers=(0.3,), participations=(1,)
        )
        worse = tuple(
            dataclasses.replace(a, epsilon=99.0) for a in small[0].answers
        )
        rows.append(
            dataclasses.replace(small[0], schedule="poisson", answers=worse)
        )
        found = best_for_worst_case(plan, rows)
        assert (
            "worst-case client of 200 (adversary sees the final model and knows"
            in found
        )
        assert "least under epochs, cyclic:a=1 (" in found
        assert found.endswith("a tie).")

    def test_a_table_is_of_one_client_and_one_view(self, small):
        shown = list(tables_of(SMALL, small))
        assert len({table.title for table in shown}) == len(shown) == 4
        for table in shown:
            (client,) = [
                c for c in ("median", "worst-case") if c in table.title
            ]
            (sees,) = [
                s
                for s, w in {"final": "final", "all": "every round"}.items()
                if w in table.title
            ]
            for row, cells in table.lines:
                found = row.of(client, sees)
                if found is not None:
                    assert cells[2] == (
                        "known" if found.theory.knows_rounds else "secret"
                    )
                    assert cells[3] == found.theory.adjacency
                    assert cells[5] == number(found.theory.epsilon)

    @pytest.mark.parametrize("failed", [False, True], ids=["all", "failed"])
    def test_it_fits_on_a_screen(self, failed, capsys, small):
        rows = [
            dataclasses.replace(small[0], schedule=spec, participations=1)
            for spec in DEFAULT_SCHEDULES
        ]
        if failed:
            rows[0] = Row(
                *next(SMALL.cells()).combination,
                not_measured="no canary took part",
            )
        plan = dataclasses.replace(
            SMALL, noise_multipliers=(0.3,), participations=(1,)
        )
        print_comparison(plan, rows, Terminal(highlight=False, width=80))
        text = capsys.readouterr().out
        if not failed:
            assert len(text.splitlines()) < 25  # and the path of the page
            assert len(text.split()) <= 200
        assert max(map(len, text.splitlines())) <= 80

    def test_trainings_are_averaged(self):
        plan = ComparisonPlan(
            ("epochs",), (1.0,), (1,), replicates=2, task="digits"
        )
        one = ClientEpsilon(
            "median",
            "all",
            Analytical(4.5, True, "zero-out", ""),
            1,
            4.0,
            3.0,
            5.0,
        )
        other = dataclasses.replace(one, epsilon=6.0, low=5.0, high=8.0)
        trainings = [training(each, each) for each in (one, other)]
        row = averaged(plan, trainings)
        found = row.answers[0]
        assert (found.epsilon, found.theory.epsilon) == (5.0, 4.5)
        assert found.low == pytest.approx(5 - np.hypot(1, 1) / 2)
        assert found.high == pytest.approx(5 + np.hypot(1, 2) / 2)
        assert not found.above
        far = dataclasses.replace(
            other, theory=dataclasses.replace(other.theory, epsilon=3.0)
        )
        # A bool of NumPy cannot be written as JSON.
        assert averaged(plan, [training(far)]).answers[0].above is True
        failed = dataclasses.replace(trainings[0], diverged="the loss is nan")
        row = averaged(plan, [failed, trainings[1]])
        assert row.failed == "diverged: the loss is nan (1 of 2 measurements)"
        assert row.answers

    def test_what_lies_above_its_bound_is_found(self, small, tmp_path):
        assert not any(row.above for row in small)
        rows = [
            dataclasses.replace(
                row, answers=(dataclasses.replace(row.answers[0], above=True),)
            )
            for row in small
            if row.skipped is None
        ]
        write_comparison(SMALL, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert f"Warning: {len(rows)} of {len(rows)} rows" in page


class TestNotMeasured:
    """Cells without an ε, or of a model that diverged: named, and never a number."""

    PLAN = dataclasses.replace(
        SMALL,
        schedules=("cyclic",),
        noise_multipliers=(0.3,),
        participations=(1, 2),
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
        assert first.answers == ()
        assert second.failed is None
        write_comparison(self.PLAN, rows, tmp_path)
        page = (tmp_path / "compare.html").read_text()
        assert (
            page.count(f"not measured: {self.REASON}") >= 2
        )  # in a table and a note
        assert (
            'role="alert">Not measured, or diverged: 1 of 2 rows; see the notes.</p>'
            in page
        )
        written = json.loads((tmp_path / "compare.json").read_text())["rows"]
        assert written[0]["not_measured"] == first.not_measured
        assert written[0]["answers"] == []
        assert (written[1]["not_measured"], written[1]["diverged"]) == (
            None,
            None,
        )

    def test_one_of_two_trainings_without_an_epsilon(
        self, tmp_path, small, monkeypatch
    ):
        def train(plan, cell, *_):
            if cell.replicate == 1:
                raise NotMeasured(self.REASON)
            return training()

        monkeypatch.setattr("fl_epe.limit.runner.train", train)
        plan = ComparisonPlan(
            ("epochs",), (1.0,), (1,), replicates=2, task="digits"
        )
        (row,) = carry_out(plan, tmp_path)
        assert row == Row(
            "epochs",
            1.0,
            1,
            not_measured=f"{self.REASON} (1 of 2 measurements)",
        )

    def test_a_cell_that_diverged_keeps_its_numbers(self, small):
        row = dataclasses.replace(
            small[0], diverged="the training loss is nan at the end"
        )
        assert row.failed == "diverged: the training loss is nan at the end"
        assert (
            failures_of([row, small[1]])
            == "Not measured, or diverged: 1 of 2 rows; see the notes."
        )
        assert notes_of(self.PLAN, [row, small[1]])[0].endswith(
            f": {row.failed}."
        )
