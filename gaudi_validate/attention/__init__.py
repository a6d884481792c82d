"""Attention implementations and their masks, one file each; :mod:`registry` puts them into transformers."""
