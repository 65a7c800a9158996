"""Which schedule to run: the sentence with which a comparison opens."""

import ast
import dataclasses
import json

import pytest
from trace_files import write_csv

from fl_epe import accounting, cli
from fl_epe.limit import ComparisonPlan, carry_out, choice, page
from fl_epe.reporting import number
from fl_epe.schedules import make_schedule

SCHEDULES = (
    "k-out-of-t",
    "poisson",
    "min-separation:separation=3",
    "cyclic",
)


def rows_of(tmp_path, **values):
    plan = ComparisonPlan(
        schedules=values.pop("schedules", SCHEDULES),
        noise_multipliers=(1.0,),
        participations=(4,),
        rounds=16,
        clients=100,
        delta=1e-3,
        **values,
    )
    return plan, carry_out(plan, tmp_path)


def choice_of(plan, rows):
    return " ".join(choice.choice_of(plan, rows)).strip()


def guaranteed(spec, noise):
    law = make_schedule(spec, 16, 4).law(100)
    found = accounting.upper_bounds(law, noise, 1e-3)
    return accounting.tightest(found, rounds_known=not law.hidden).epsilon


def test_the_smallest_guarantee_is_named_with_what_it_costs(tmp_path):
    plan, rows = rows_of(tmp_path)
    text = choice_of(plan, rows)
    epsilon, after = guaranteed("k-out-of-t", 1.0), guaranteed("poisson", 1.0)
    assert text.startswith(
        f"Run k-out-of-t: ε of every client is at most {epsilon:.3g} with 4"
    )
    assert "(adversary sees every round, not who takes part)." in text
    assert (
        f"That is {1 - epsilon / after:.1%} less ε than with poisson." in text
    )
    assert "of 100 clients." in text


@pytest.mark.weekly
def test_a_command_can_be_pasted(tmp_path):
    _, command = choice_of(*rows_of(tmp_path)).split(
        "With 100 clients: fl-epe run TASK "
    )
    words = command.split()
    assert words[words.index("--clients-per-round") + 1] == "25"
    small = ["--output", str(tmp_path / "run"), "--num-clients", "100"]
    cli.main(["run", "digits", *words, *small, "--seed", "1"])
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [each["participations"] for each in report["answer"]] == [4, 4]
    assert not any(each["knows_rounds"] for each in report["answer"])


@pytest.mark.slow
def test_the_noise_for_a_wanted_epsilon_is_enough_and_hardly_more(tmp_path):
    plan, rows = rows_of(tmp_path, target_epsilon=2.0)
    text = choice_of(plan, rows)
    noise = float(text.split("z = ")[1].split()[0])
    assert text.startswith("Run k-out-of-t: z = ")
    assert (
        guaranteed("k-out-of-t", noise)
        <= 2.0
        < guaranteed("k-out-of-t", noise * 0.995)
    )
    assert "less noise than with poisson" in text
    assert f"--noise-multiplier {noise:g}" in text


@pytest.mark.parametrize(
    ("constraint", "best"),
    [
        ({"least_distance": 3}, "cyclic"),
        ({"clients_draw": True}, "k-out-of-t"),
    ],
    ids=["distance", "drawn"],
)
def test_constraints_rule_schedules_out(tmp_path, constraint, best):
    text = choice_of(*rows_of(tmp_path, **constraint))
    assert f"{best}:" in text or f"{best} or" in text
    assert "Ruled out: " in text
    ruled_out = text.split("Ruled out: ")[1].split(".")[0]
    assert best not in ruled_out


def test_clients_who_are_offline_at_times_of_their_own_come_as_in_a_log(
    tmp_path,
):
    rows = (
        (t, client) for client in range(100) for t in range(client % 4, 16, 4)
    )
    log = f"trace:path={write_csv(tmp_path / 'log.csv', rows)}"
    text = choice_of(
        *rows_of(tmp_path, schedules=("poisson", log), part_time=True)
    )
    assert text.startswith(f"Run {log}: ")
    assert "Ruled out: poisson." in text


def test_nothing_that_is_allowed_is_said_with_the_reasons(tmp_path):
    plan, rows = rows_of(
        tmp_path, schedules=("poisson",), least_distance=5, part_time=True
    )
    assert choice_of(plan, rows) == (
        "No schedule allows what you ask for (poisson: two rounds of a client may be less than 5"
        " apart)."
    )


def test_a_cap_by_which_clients_come_less_often_is_no_answer(tmp_path):
    capped = "capped:of=poisson,per_run=2"
    text = choice_of(*rows_of(tmp_path, schedules=(capped, "poisson")))
    assert text.startswith("Run poisson: ")
    assert f"Ruled out: {capped}." in text
    alone = choice_of(*rows_of(tmp_path, schedules=(capped,)))
    assert "its clients take part 1." in alone
    assert "times on average" in alone


def test_the_separated_schedules_follow_the_distance(tmp_path):
    plan = ComparisonPlan(least_distance=3, rounds=16, participations=(4,))
    assert {s for s in plan.schedules if "separation" in s} == {
        "min-separation:separation=3",
        "b-min-sep:separation=3",
    }
    chosen = ComparisonPlan(
        least_distance=3, schedules=("b-min-sep:separation=4",)
    )
    assert chosen.schedules == ("b-min-sep:separation=4",)


def test_a_size_that_is_not_whole_is_rounded_down_where_the_schedule_allows_it(
    tmp_path,
):
    plan = ComparisonPlan(
        schedules=("b-min-sep:separation=3",),
        rounds=17,
        clients=100,
        participations=(3,),
    )
    text = choice_of(plan, choice_rows(plan, tmp_path))
    assert (
        "--participation b-min-sep:separation=3 --rounds 17 --clients-per-round 17 "
        in text
    )


def choice_rows(plan, tmp_path):
    rows = carry_out(plan, tmp_path)
    return [
        row
        for row in rows
        if (row.noise_multiplier, row.participations) == plan.middle
    ]


def test_schedules_with_the_same_guarantee_are_both_named(tmp_path):
    text = choice_of(
        *rows_of(tmp_path, schedules=("balls-in-bins", "k-out-of-t", "poisson"))
    )
    assert text.startswith("Run balls-in-bins or k-out-of-t: ")


@pytest.mark.slow
def test_of_several_mechanisms_the_first_counts(tmp_path):
    one = choice_of(*rows_of(tmp_path))
    assert (
        choice_of(
            *rows_of(tmp_path, mechanisms=("independent", "banded:bands=2"))
        )
        == one
    )
    banded = choice_of(*rows_of(tmp_path, mechanisms=("banded:bands=2",)))
    assert "--mechanism banded:bands=2" in banded


def test_cohorts_are_drawn_by_what_is_said(tmp_path):
    plan, _ = rows_of(tmp_path, schedules=("k-out-of-t",))
    plan = dataclasses.replace(plan, participations=(3,))
    text = choice_of(plan, carry_out(plan, tmp_path))
    made = text.split("fl_epe.schedules.make_schedule")[1].split(".cohorts")[0]
    schedule = make_schedule(*ast.literal_eval(made))
    assert schedule.participations() == pytest.approx(3)


@pytest.mark.parametrize("name", ["target_epsilon", "least_distance"])
def test_errors(name):
    with pytest.raises(ValueError, match=name):
        ComparisonPlan(**{name: 0})
    with pytest.raises(ValueError, match=f"{name}.*only without a task"):
        ComparisonPlan(task="digits", **{name: 2})


def test_drawn_losses_may_make_another_schedule_the_best(tmp_path):
    banded = {
        "schedules": ("balls-in-bins", "poisson"),
        "mechanisms": ("banded:bands=4",),
    }
    plain, plain_rows = rows_of(tmp_path / "plain", **banded)
    plan, rows = rows_of(tmp_path / "drawn", draws=20_000, **banded)
    assert [row.drawn for row in plain_rows] == [None, None]
    assert rows[1].drawn is None  # three neighbours may share noise
    assert rows[0].drawn < rows[0].guaranteed
    text = choice_of(plan, rows)
    assert text.startswith(
        f"Run balls-in-bins: ε of every client is at most {number(rows[0].drawn)} with 4 "
        "participations in 16 rounds and z = 1 (by Monte Carlo, with 99.9% confidence), at δ"
    )
    assert "Monte Carlo" not in choice_of(plain, plain_rows)
    (note,) = [
        note for note in page.notes_of(plan, rows) if "Monte Carlo" in note
    ]
    assert (
        f"balls-in-bins, banded:bands=4 at z = 1, 4 participations: {number(rows[0].drawn)}"
        in note
    )


def test_every_bound_of_a_table_has_its_share_of_the_doubt(
    tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        "fl_epe.accounting.drawn_epsilon",
        lambda *_, confidence, **__: asked.append(confidence),
    )
    schedules = ("b-min-sep:separation=3", "b-min-sep:separation=2")
    rows_of(tmp_path, schedules=schedules, draws=10_000)
    rows_of(
        tmp_path, schedules=("poisson", "k-out-of-t"), draws=10_000
    )  # the first is exact
    assert asked == pytest.approx([1 - 0.001 / 2] * 3)


def test_draws_are_for_a_noise_that_is_given(tmp_path):
    with pytest.raises(
        ValueError, match="draws=1000 only without target_epsilon"
    ):
        rows_of(tmp_path, draws=1000, target_epsilon=1.0)
