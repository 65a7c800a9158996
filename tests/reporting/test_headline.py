"""The top of a report's page: never more certain, nor more private, than what was measured."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.accounting import delta_two_gaussians
from fl_epe.auditing import EarlyStop, EpsilonEstimate
from fl_epe.reporting import as_text, summarize
from fl_epe.reporting.headline import LITTLE, SOME, guess_limit, headline, meaning
from fl_epe.reporting.notes import notes, notes_by_weight

LOW, MIDDLE, HIGH = (0.1, 0.0, 0.3), (1.5, 1.2, 2.0), (9.0, 7.0, 12.0)


_measured = functools.cache(lambda: summarize(make_record()))
_unmeasured = functools.cache(lambda: summarize(record_of(0)))


def _summary(final, every, **changes):
    """A summary whose headlines have these ε, low and high; ``None`` for not measured."""
    whole, nothing = _measured(), _unmeasured()
    parts = []
    for part, missing, values in (
        (whole.final.headline, nothing.final.headline, final),
        (whole.every_round.headline, nothing.every_round.headline, every),
    ):
        if values is None:
            parts.append(missing)
        else:
            epsilon, low, high = values
            found = EpsilonEstimate(epsilon, low, high, 1e-3, 0.95, "synthetic")
            parts.append(dataclasses.replace(part, estimate=found))
    return dataclasses.replace(
        whole,
        final=dataclasses.replace(whole.final, headline=parts[0]),
        every_round=dataclasses.replace(whole.every_round, headline=parts[1]),
        **changes,
    )


def _no_theorem(epsilon):
    analytical = _measured().analytical
    return {"analytical": dataclasses.replace(analytical, epsilon=epsilon)}


@pytest.mark.parametrize("shift", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_no_guess_between_two_gaussians_beats_the_limit(shift, epsilon):
    delta = delta_two_gaussians(0, 1, shift, 1, epsilon)
    best = 0.5 * (1 + math.erf(shift / 2 / math.sqrt(2)))  # Φ(shift / 2)
    assert best <= guess_limit(epsilon, delta) + 1e-12


def test_the_limit_is_met_by_randomized_response():
    epsilon, delta = 1.3, 0.01
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert guess_limit(epsilon, delta) == pytest.approx(delta + (1 - delta) * truth)
    assert guess_limit(0.0, 0.0) == 0.5
    assert guess_limit(math.inf, 0.0) == 1.0


@pytest.mark.parametrize(
    ("final", "every", "words"),
    [
        pytest.param(LOW, HIGH, "publish only the finished model and keep those of", id="final"),
        pytest.param(LOW, LOW, "nothing has to change, though other attacks may", id="nothing"),
        pytest.param(HIGH, HIGH, "raise the noise, or let each client take part less", id="noise"),
        pytest.param(MIDDLE, HIGH, "raise the noise if even that is too much", id="middle"),
        pytest.param(MIDDLE, MIDDLE, "raise the noise if that is too much", id="both-middle"),
        pytest.param(None, LOW, "measure the finished model as well", id="no-final"),
        pytest.param(LOW, None, "as the rounds were not measured", id="no-rounds"),
    ],
)
def test_what_to_do_follows_from_what_was_found(final, every, words):
    text = headline(_summary(final, every))
    assert words in text
    assert text.endswith(".")
    assert ("nothing has to change" in text) is (words.startswith("nothing"))


def test_the_upper_end_of_an_interval_decides():
    """A small estimate that may be large is not called small."""
    unsure = headline(_summary((0.1, 0.0, 9.0), LOW))
    assert "only the finished model can tell a lot" in unsure
    assert "nothing has to change" not in unsure
    endless = headline(_summary((0.1, 0.0, math.inf), LOW))
    assert "can tell a lot" in endless
    assert "∞ with 95% confidence" in endless


@pytest.mark.slow
def test_where_no_theorem_holds_that_is_said():
    for limit in (None, math.inf):
        text = headline(_summary(LOW, LOW, **_no_theorem(limit)))
        assert "no theorem guarantees it" in text
    bare = headline(_summary(HIGH, HIGH, noise_multiplier=0.0))
    assert "so add noise" in bare


def test_what_was_not_measured_is_no_number():
    top = headline(_unmeasured())
    assert "Nothing was measured" in top
    assert "do not take it for private" in top
    assert meaning(_unmeasured())[0].startswith("Had ε been measured, ε = 1 would mean")
    assert "73.1%" in meaning(_unmeasured())[0]


def test_a_model_that_diverged_is_no_finding():
    metrics = {"eval_round": np.arange(6.0), "eval_loss": np.append(np.ones(5), np.inf)}
    text = headline(summarize(make_record(metrics=metrics)))
    assert text.startswith("The training went wrong")
    assert "ε" not in text


def test_a_stopped_run_has_the_interval_that_holds_after_a_stop():
    stopped = EarlyStop(3, EpsilonEstimate(5.5, 4.25, 7.75, 1e-3, 0.95, "m"))
    record = make_record(stopped=stopped, stop_when="epsilon-all-low > 4", num_rounds=6)
    text = headline(summarize(record))
    assert "5.50, 4.25 to 7.75 with 95% confidence" in text
    assert "less sure than usual as the run was stopped on its scores" in text


def test_what_it_means_for_a_guess():
    final, every, about = meaning(_summary((1.0, 0.8, 1.2), (16.0, 15.0, 17.0)))
    assert "right in at most 73.1% of cases, at odds of 2.72 to 1" in final
    assert "δ = 0.001 is counted in" in final
    assert "If ε is at the upper end of its interval, 1.20, in at most 76.9% of cases" in final
    assert "at odds of 8,900,000 to 1" in every or "at odds of 8,800,000 to 1" in every
    assert f"{LITTLE:.0%}" in about
    assert f"{SOME:.0%}" in about
    always = meaning(_summary((40.0, 30.0, 50.0), LOW))[0]
    assert "right practically always" in always


def test_a_model_is_not_to_be_published_before_it_is_measured_for_real_clients():
    summary = _summary(LOW, (16.0, 15.0, 17.0))
    assert "publish only the finished model" in headline(summary)
    analytical = dataclasses.replace(
        summary.analytical, participations=1.0, client_participations=24.0
    )
    found = headline(dataclasses.replace(summary, analytical=analytical))
    assert "so measure again with canaries that take part in 24 rounds, as clients do" in found
    assert "publish only" not in found


def test_a_run_says_how_often_its_clients_were_to_take_part():
    record = make_record()
    with_settings = record.with_values(
        schedule="epochs", num_clients=50, num_rounds=60, clients_per_round=20
    )
    found = summarize(with_settings).analytical
    assert (found.participations, found.client_participations) == (3.0, 24.0)
    assert "real clients took part in about 24 rounds" in headline(summarize(with_settings))
    without = with_settings.with_values(num_rounds=None)
    assert summarize(without).analytical.client_participations is None


def test_warnings_stand_beside_the_table_and_the_rest_is_for_reading_on():
    summary = dataclasses.replace(summarize(make_record()), canary_share=0.88, cohort_size=50.0)
    first, rest = notes_by_weight(summary)
    assert sorted(first + rest) == sorted(notes(summary))
    assert any(line.startswith("Warning: Canaries are 88%") for line in first)
    assert not any(line.startswith("Warning") for line in rest)
    assert first[0].endswith("They are not bounds.")
    assert len(rest) > len(first)


def test_a_cohort_of_mostly_canaries_is_warned_of():
    summary = summarize(make_record())
    few, many = (
        as_text(
            dataclasses.replace(summary, canary_share=share, cohort_size=50.0),
            width=1000,
            details=True,
        )
        for share in (0.2, 0.88)
    )
    assert "- Canaries are 20% of a cohort of 50.\n" in few
    assert "Warning: Canaries are 88% of a cohort of 50. The model learns more slowly" in many
    assert "--num-canaries" in many


def test_clients_who_take_part_more_often_than_canaries_are_not_told_that_all_is_well():
    summary = summarize(make_record())
    analytical = dataclasses.replace(
        summary.analytical, participations=1.0, client_participations=24.0
    )
    more = dataclasses.replace(summary, analytical=analytical)
    top = headline(more)
    assert "took part in one round" in top
    assert "real clients took part in about 24 rounds each" in top
    assert "nothing has to change" not in top
    assert "as real ones do" not in " ".join(meaning(more))
    assert "participations=24 of CanaryAudit" in as_text(more, width=1000)
    commands = ["fl-epe --debug run tasks:t --seed … --rounds 9 --output='x y' --note '$(a); b'"]
    typed = dataclasses.replace(more, run={"commands": commands}, num_canaries=1200)
    again = "fl-epe run tasks:t --rounds 9 --note '$(a); b' --canary-participations as-clients"
    assert f"{again} --num-canaries 50\n" in as_text(typed, width=40)  # on one line, to be pasted
    for other in ("fl-epe resume x", "rm -r x", "fl-epe run 'x", ""):
        typed = dataclasses.replace(typed, run={"commands": [other]})
        assert "of CanaryAudit" in as_text(typed, width=1000)
    alike = dataclasses.replace(analytical, client_participations=1.1)
    assert "--canary-participations" not in as_text(dataclasses.replace(summary, analytical=alike))
