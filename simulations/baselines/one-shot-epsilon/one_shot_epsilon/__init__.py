"""The runs of Andrew et al. (2024) as a Flower baseline: `fl_epe` does the work."""
