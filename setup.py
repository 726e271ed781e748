"""List the packages under the three top-level folders; everything else is in pyproject.toml.

``backends/``, ``hw_profiles/`` and ``scenarios/`` stand at the top of the repository and install inside the package, as
``iossim.backends``, ``iossim.hw_profiles`` and ``iossim.scenarios``, so that a user's site-packages gets one name only.
A static list would miss new subpackages.
"""

from setuptools import find_packages, setup

packages = ["iossim", *(f"iossim.{name}" for name in find_packages("iossim"))]
packages += ["iossim.backends", *(f"iossim.backends.{name}" for name in find_packages("backends"))]
packages += ["iossim.hw_profiles", "iossim.scenarios"]

setup(packages=packages)
