"""Goldens and baselines: records, files, the syrupy extension, the update rules."""
