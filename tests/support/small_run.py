"""The words of a small run of the command line."""

SMALL = [
    "run", "digits", "--num-clients", "120", "--clients-per-round", "30", "--num-canaries", "20",
    "--unobserved", "20", "--canary-participations", "1", "--evaluate-every", "2",
]  # fmt: skip
ROUNDS = "4"
SEED = "918273645"
