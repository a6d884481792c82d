"""The rules: pure functions and frozen records, standard library only."""
