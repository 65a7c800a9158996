"""Participation logs as files."""

import csv

# Traces.

ROWS = [(12, "b"), (10, "a"), (10, "c"), (14, "a"), (12, "a")]


def write_csv(path, rows, header=("round", "client_id")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path
