"""Devices: identify, choose, synchronise."""
