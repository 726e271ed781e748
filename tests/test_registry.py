"""What is found by name: iossim's own first, in its order, and an error that names the nearest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iossim.base.errors import ModelError, OptionError
from iossim.base.registry import Group, module_names, modules

LETTERS = {"beta": 2, "alpha": 1}
GROUP: Group[int] = Group("letter {!r} is not known", lambda: LETTERS, LETTERS.get)


def test_what_iossim_has_itself() -> None:
    assert GROUP.names() == ["beta", "alpha"]
    assert GROUP.find("alpha") == 1
    assert GROUP.get("gamma") is None
    assert GROUP.states() == []
    with pytest.raises(OptionError, match=r"letter 'alhpa' is not known; did you mean 'alpha'\? known: alpha, beta"):
        GROUP.find("alhpa")


def test_a_group_says_its_own_error_and_that_there_is_nothing() -> None:
    empty: Group[int] = Group("unknown {!r}", tuple, lambda name: None, error=ModelError)
    with pytest.raises(ModelError, match="unknown 'x'; no installed package adds any"):
        empty.find("x")


def test_modules_are_found_by_looking() -> None:
    assert {"resnet", "squeezenet"} <= set(module_names("iossim.models.zoo"))
    assert [module.__name__ for module in modules("iossim.models.zoo")] == [
        f"iossim.models.zoo.{name}" for name in module_names("iossim.models.zoo")
    ]


def test_the_registry_knows_no_room() -> None:
    told = "import sys, iossim.base.registry; print(sorted(name for name in sys.modules if name.startswith('iossim')))"
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['iossim', 'iossim._version', 'iossim.base', 'iossim.base.errors', 'iossim.base.registry']"
