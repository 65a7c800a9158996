"""Table 3 and figures 1 and 2 of Andrew et al. (2024): StackOverflow next words, trained.

    python simulations/paper/stackoverflow.py --scale 0.0625    # a laptop, the twin
    python simulations/paper/stackoverflow.py --data-dir DIR    # a GPU, the real set, full size
    python simulations/paper/stackoverflow.py --scale 0.0625 --participations 1 2 4 8 16  # figures

An LSTM of 4,050,748 parameters; 2,048 rounds of 167 clients, each client once; 1,000 + 1,000
canaries; every round's mean is scored.

``--scale s`` has s times the rounds, clients a round and canaries, s² times the clients, and s
times the server's learning rate, because the mean of fewer clients is noisier. ε-final falls with
the number of rounds, so a run at a smaller scale has a larger ε-final than the paper's; the column
"limit, final" says what to expect where noise outweighs the updates.

The full size has not been run, for lack of a GPU. Training takes about 3.3e16 floating-point
operations: 86 hours of one core, or an hour on a GPU that sustains 10 TFLOP/s. Canaries
are the paper's, independent, and made again for each block of rounds, which takes 74 s for 2,000 of
them; ``--score-memory`` allows larger blocks, and ``--set canary_kind=rotation`` needs none.

At scale 1/16 with at most 64 sentences a user (``--task-option max_examples=64``), two cores, eight
minutes for both rows, seed 0: 128 rounds of 10 users, 62 + 62 canaries::

         z  all (interval)            paper   final (interval)     limit   loss
         0  70,005 (69,912 – 70,098)  45,800  42.0 (39.4 – 44.6)           9.18 → 5.99
    0.0496  297 (291 – 303)              382  6.90 (5.44 – 8.42)    8.14   9.18 → 6.03

The analytical ε of the second row is 299. The column "limit" is for noise alone.
"""

from __future__ import annotations

from paper_runs import PaperRow, PaperTable, run

TABLE = PaperTable(
    title="Table 3, StackOverflow",
    rows=(
        PaperRow(0.0, float("inf"), 6.240, 45800, 2.88, 4.60),
        PaperRow(0.0496, 300, 6.238, 382.0, 1.11, 1.97),
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
    run(TABLE, __doc__)
