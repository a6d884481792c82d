"""Ports under test: what they must offer (:mod:`base`) and the ones that ship."""
