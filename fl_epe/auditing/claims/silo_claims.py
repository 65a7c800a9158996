"""A test of claims of (ε, δ)-DP by the answers of silos."""

from collections.abc import Mapping

from fl_epe.auditing.answer import SiloAnswer
from fl_epe.auditing.claims.evidence import Undecided
from fl_epe.checks import check_not_negative, raise_invalid
from fl_epe.wording import number


def assert_silos_private(
    answers: Mapping[str, SiloAnswer],
    epsilon: float,
    delta: float,
    *,
    allow_undecided: bool = False,
) -> None:
    """Fail if an answer refutes the claim that a silo was (ε, δ)-DP; passing does not prove it.

    Args:
        answers: the answers by silo, such as `fl_epe.flower.RecordAudit.answers`.
        epsilon: the claim for one unit of a silo, in nats.
        delta: the δ of the claim, and of every answer.
        allow_undecided: whether to pass if `Undecided` would be raised.

    Raises:
        AssertionError: with the name of each silo that has faults, or a lower bound above
            ``epsilon`` against an adversary.
        Undecided: a `ValueError`, if no claim is refuted, but a silo measured nothing, or the
            interval of ε is above the claim and the lower bound is not, or there are no answers.
        ValueError: if an answer has another δ.

    Examples:
        >>> from fl_epe.auditing.answer import SiloLine
        >>> line = SiloLine("server", 9.0, 8.0, 10.0, proved=6.5, theory=3.0)
        >>> answer = SiloAnswer("north", "record", 1e-5, 0.95, 30, 200, (line,))
        >>> assert_silos_private({"north": answer}, epsilon=3.0, delta=1e-5)
        Traceback (most recent call last):
        AssertionError: north: ε of one record is at least 6.50 against the server, and 3.00 claimed
    """
    check_not_negative("epsilon", epsilon)
    refuted: list[str] = []
    undecided: list[str] = []
    for silo, answer in answers.items():
        if answer.delta != delta:
            raise_invalid(
                "delta",
                delta,
                f"to be {answer.delta}, as in the answer of {silo}",
            )
        refuted += [f"{silo}: {fault}" for fault in answer.faults]
        for line in answer.lines:
            if (line.proved or 0.0) > epsilon:
                refuted.append(
                    f"{silo}: ε of one {answer.unit} is at least {number(line.proved)} against the"
                    f" {line.adversary}, and {number(epsilon)} claimed"
                )
            elif (line.low or 0.0) > epsilon:
                undecided.append(
                    f"{silo}: the interval of ε is above the claim, but no lower bound is"
                )
        if all(line.epsilon is None for line in answer.lines):
            undecided.append(f"{silo}: nothing was measured")
    if refuted:
        raise AssertionError("\n".join(refuted))
    if not answers:
        undecided.append("no silo has answered")
    if undecided and not allow_undecided:
        raise Undecided("\n".join(undecided))
