"""DP-FedAvg with canaries on handwritten digits, as a Flower app."""
