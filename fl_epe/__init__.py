"""Empirical privacy estimation for federated learning, in the same single run."""

__version__ = "0.1.0"
