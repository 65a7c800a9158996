"""Table 3 and figures 1 and 2 of Andrew et al. (2024): StackOverflow next words, trained.

    python simulations/stackoverflow.py --scale 0.0625          # a laptop, the twin
    python simulations/stackoverflow.py --data-dir DIR          # the real set, full size: a GPU
    python simulations/stackoverflow.py --scale 0.0625 --participations 1 2 4 8 16    # the figures

LSTM of 4,050,748 parameters, 2,048 rounds of 167 clients, each client once, 1,000 + 1,000
canaries, every round's mean scored. `--scale s` has s times the rounds, clients a round and
canaries, s² times the clients, and server steps of s times the length, as the mean of fewer
clients is noisier. ε-final falls with the number of rounds, so at a scale it is larger than the
paper's; "limit, final" says what to expect where noise outweighs the updates.

Full size was not run where this was written, for lack of a GPU. Training takes about 3.3e16
floating-point operations: 86 hours of one core, an hour on a GPU that sustains 10 TFLOP/s. Scoring
makes every canary anew for each block of rounds, 74 s for 2,000: `--score-memory`
gives it larger blocks.

At scale 1/16 with at most 64 sentences a user (``--task-option max_examples=64``), two cores, eight
minutes for both rows, seed 0: 128 rounds of 10 users, 62 + 62 canaries::

         z  all (interval)            paper   final (interval)     limit   loss
         0  70,005 (69,912 – 70,098)  45,800  42.0 (39.4 – 44.6)           9.18 → 5.99
    0.0496  297 (291 – 303)              382  6.90 (5.44 – 8.42)    8.14   9.18 → 6.03

The analytical ε of the second row is 299. The limit's figure is for noise alone.
"""

from __future__ import annotations

import sys

from paper_runs import PaperRow, PaperTable, run

TABLE = PaperTable(
    title="Table 3, StackOverflow",
    rows=(
        PaperRow(0.0, float("inf"), 6.240, 45800, 2.88, 4.60),
        PaperRow(0.0496, 300, 6.238, 382, 1.11, 1.97),
        PaperRow(0.0986, 100, 5.05, 89.4, 0.688, 1.18),
        PaperRow(0.2317, 30, 0.407, 2.693, 0.311, 0.569),
    ),
    delta=341_000**-1.1,
    rounds=2048,
    clients_per_round=167,
    epochs=1,
    server_learning_rate=0.56,
    twin="stackoverflow-twin",
    real="stackoverflow",
)

if __name__ == "__main__":
    run(TABLE, sys.modules["__main__"].__doc__ or "")
