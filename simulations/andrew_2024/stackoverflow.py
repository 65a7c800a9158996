"""Table 3 and figures 1 and 2 of Andrew et al. (2024): StackOverflow next words, trained.

    python simulations/andrew_2024/stackoverflow.py --scale 0.0625  # a laptop, synthetic data
    python simulations/andrew_2024/stackoverflow.py --data-dir DIR  # a GPU, the real set, full size
    python simulations/andrew_2024/stackoverflow.py --scale 0.0625 --participations 1 2 4 8 16

An LSTM of 4,050,748 parameters; 2,048 rounds of 167 clients, each client once; 1,000 + 1,000
canaries; every round's mean is scored.

``--scale s`` has s times the rounds, clients a round and canaries, s² times the clients, and s
times the server's learning rate, because the mean of fewer clients is noisier. Two things differ at
a small scale, and the column "limit, final" has both:

- ε-final falls with the number of rounds, so it is larger than the paper's.
- The clip norm begins at 0.1 and grows by at most a tenth a round. At scale 1/32 it does so in the
  whole run, and clients of late rounds have expected scores up to twenty times those of early ones.
  The late ones decide ε of an average-case client, which is printed: for z = 0.0496 it is 34.7 in
  the limit, where ε at the mean expected score is 11.5.

The full size has not been run, for lack of a GPU. Training takes about 3.3e16 floating-point
operations: 86 hours of one core, or an hour on a GPU that sustains 10 TFLOP/s. Canaries
are the paper's, independent, and made again for each block of rounds, which takes 74 s for 2,000 of
them; ``--set canary_kind=rotation`` needs no blocks.

At scale 1/32 with at most 64 sentences a user (``--task-option max_examples=64``), five minutes of
one core for both rows, seed 0: 64 rounds of 5 users, 31 + 31 canaries::

         z  all (interval)     paper  final (interval)    limit  updates  loss
    0.0496  303 (295 – 312)      382  35.3 (28.6 – 42.5)   34.7       3%  9.18 → 7.38
    0.2317  26.8 (23.8 – 30.0)   2.7  2.13 (0 – 5.14)      3.63       0%  9.18 → 10.22

The analytical ε are 299 and 29.3. In units of the clip norm, the noise of a server step is that of
the full size, and the updates are a 32nd of theirs. At z = 0.2317 the model is noise: the loss
falls to 8.06 until round 54, and rises as the clip norm, and the noise with it, doubles from 3 to 6
in the last ten rounds. With a quarter of the server's learning rate it ends at 9.01, and does not
rise.

Table 6 at that scale, with at most 8 sentences a user (five minutes): A² of 31 cosines with the
final model, its p-value, and the paper's A² of 1,000 cosines::

         z  participations     A²     p  paper
    0.0496               1    0.499  0.20  0.462
    0.0496               4    0.455  0.25  0.444
    0.2317               1    0.344  0.47   1.23
    0.2317               4    0.246  0.74  0.523
"""

from __future__ import annotations

from simulations.andrew_2024.paper_runs import PaperRow, PaperTable, run

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
    synthetic="synthetic-stackoverflow",
    real="stackoverflow",
)

if __name__ == "__main__":
    run(TABLE, __doc__)
