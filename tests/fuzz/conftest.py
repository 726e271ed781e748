"""The process that commands are fuzzed in, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from fuzz_runner import Runner


@pytest.fixture(scope="package")
def command() -> Iterator[Runner]:
    with Runner("command") as runner:
        yield runner
