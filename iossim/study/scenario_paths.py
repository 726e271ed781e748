"""Paths in a scenario's file, which are relative to the file: they are made absolute as it is read."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

#: Key of a validation's context: the folder of the file that is read.
FOLDER = "folder"
#: Cost models whose argument is a file.
_FILE_COST_MODELS = ("table", "replay")


def file_or_name(*endings: str) -> AfterValidator:
    """Validator of a path or a name: a text with a folder, or with one of the endings, is a path."""

    def whole(text: str, info: ValidationInfo) -> str:
        is_path = PurePath(text).suffix.lower() in endings or len(PurePath(text).parts) > 1
        return _whole(text, info) if is_path else text

    return AfterValidator(whole)


def _whole(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get(FOLDER)
    return path if folder is None else os.path.abspath(folder / os.path.expanduser(path))


def _whole_cost_model(text: str, info: ValidationInfo) -> str:
    name, _, argument = text.partition(":")
    return f"{name}:{_whole(argument, info)}" if name in _FILE_COST_MODELS and argument else text


#: A cost model by name, with an argument, which may be a file.
CostModelName = Annotated[str, AfterValidator(_whole_cost_model)]


def file_of_cost_model(spec: str) -> str:
    """File that a cost model reads, for a replay without the context after ``#``; empty where it reads none."""
    name, _, argument = spec.partition(":")
    if name not in _FILE_COST_MODELS:
        return ""
    return argument.rpartition("#")[0] or argument if name == "replay" else argument
