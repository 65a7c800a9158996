"""What can canaries show beside few clients? Printed before any training, from an audit's own plan.

    python simulations/studies/few_clients.py  # two seconds

All clients take part in every round, in Flower's wrapper for fixed clipping whose noise (z = 1) is
for as many replies as there are clients, δ = 1e-5. A canary then answers in the place of a client.
A row is what `CanaryAudit` says before the first round, if theory holds: the share of replies that
are a canary's, and ε with the interval that canaries of this plan give.
"""

from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from fl_epe.flower.plan import AuditPlan, make_plan
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped

CLIENTS, ROUNDS = (2, 3, 5, 8, 10), (30, 60, 120)
NOISE_MULTIPLIER, DELTA = 1.0, 1e-5


def plan_of(clients: int, rounds: int) -> AuditPlan:
    """The canaries that an audit would choose."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), NOISE_MULTIPLIER, 0.1, clients
    )
    settings = CanaryAuditSettings(delta=DELTA, seed=0)
    return make_plan(settings, Wrapped(strategy), rounds, clients, clients)


def row_of(plan: AuditPlan) -> str:
    """A row of the table, in Markdown."""
    load = plan.load
    assert load is not None
    final, every = (
        f"{expected.epsilon:.3g} ({expected.low:.3g} – {expected.high:.3g})"
        for expected in load.forecasts
    )
    cells = (
        load.rounds,
        f"{load.share:.0%}",
        f"{plan.planned:.0f}",
        every,
        final,
    )
    return " | ".join(map(str, cells))


def main() -> None:
    """Print the table."""
    print(
        "| clients | rounds | canaries' share | rounds with one | ε, every round | ε, final |"
    )
    print("|---|---|---|---|---|---|")
    for clients in CLIENTS:
        for rounds in ROUNDS:
            print(f"| {clients} | {row_of(plan_of(clients, rounds))} |")


if __name__ == "__main__":
    main()
