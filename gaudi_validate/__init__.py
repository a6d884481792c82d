"""Regression tests and validation for model ports to Intel Gaudi (HPU)."""

__version__ = "0.1.0"
