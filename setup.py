"""List the packages, and where those under the three top-level folders lie; everything else is in pyproject.toml.

``backends/``, ``hw_profiles/`` and ``scenarios/`` stand at the top of the repository and install inside the package, as
``iossim.backends``, ``iossim.hw_profiles`` and ``iossim.scenarios``, so that a user's site-packages gets one name only.
A static list would miss new subpackages.

A checkout finds the three by itself (``iossim/__init__.py``), so that an editable install is the path of the checkout.
With finders of setuptools, Python would take a folder ``iossim`` in the working directory, such as the checkout, for
the package.
"""

import sys

from setuptools import find_packages, setup

packages = ["iossim", *(f"iossim.{name}" for name in find_packages("iossim"))]
folders = {"": "."}
if "editable_wheel" not in sys.argv:
    packages += ["iossim.backends", *(f"iossim.backends.{name}" for name in find_packages("backends"))]
    packages += ["iossim.hw_profiles", "iossim.scenarios"]
    folders |= {f"iossim.{name}": name for name in ("backends", "hw_profiles", "scenarios")}

setup(packages=packages, package_dir=folders)
