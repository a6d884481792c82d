"""Devices: find (:mod:`detect`), open (:mod:`device`), and one module a kind (:mod:`cpu`, :mod:`cuda`, :mod:`hpu`)."""
