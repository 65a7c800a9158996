"""Table 4 of Andrew et al. (2024): EMNIST by writer, trained.

    python simulations/andrew_2024/emnist.py --scale 0.2                  # a laptop, synthetic data
    python simulations/andrew_2024/emnist.py --data-dir flwrlabs/femnist  # the real set, full size

A CNN of 1,206,590 parameters; 3,383 writers, 15 epochs in 500 rounds of about 101; client SGD with
rate 0.031 and batches of 16; server SGD with rate 1.0 and momentum 0.9; 1,000 + 1,000 canaries that
take part once.

``--scale s`` has s times the rounds, clients a round and canaries, s² times the writers, and s
times the server's learning rate, because the mean of fewer clients is noisier. ε-final falls with
the number of rounds; the column "limit, final" says what to expect where noise outweighs the
updates.

The paper does not say which δ this table has. At 4e-6 the noise multipliers give the analytical ε
that it prints (at 3383^-1.1 they give 285, 92 and 26).
"""

from __future__ import annotations

from simulations.andrew_2024.paper_runs import PaperRow, PaperTable, run

TABLE = PaperTable(
    title="Table 4, EMNIST",
    rows=(
        PaperRow(0.0, float("inf"), 6.25, 16300, 6.86, 8.87),
        PaperRow(0.0487, 300, 6.25, 258, 2.59, 3.71),
        PaperRow(0.0958, 100, 5.46, 76.9, 1.34, 2.05),
        PaperRow(0.2207, 30, 1.42, 5.97, 0.623, 0.992),
    ),
    delta=4e-6,  # at which the table's noise gives the table's analytical ε
    rounds=500,
    clients_per_round=101,
    epochs=15,
    server_learning_rate=1.0,
    synthetic="synthetic-emnist",
    real="emnist",
)

if __name__ == "__main__":
    run(TABLE, __doc__)
