"""Tests of goldens, baselines and the evidence file."""
