"""Measurements: live bytes, latency."""
