"""Versions of what results depend on, from package metadata: nothing is imported for it."""

from __future__ import annotations

from importlib import metadata

# The distribution that holds habana_frameworks is called habana-torch-plugin in Gaudi images.
PACKAGES = ("torch", "transformers", "optimum-habana", "habana-torch-plugin", "pytest")


def installed(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of those ``packages`` that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
