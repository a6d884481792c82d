"""Checks: (port, model, scenario) -> evidence. They measure and judge; they know no pytest."""
