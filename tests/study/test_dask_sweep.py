"""The same study on a local Dask cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_studies import files_of, small_study

from iossim.base.errors import OptionError
from iossim.study.sweep import run_study

distributed = pytest.importorskip("distributed", reason="Dask is not installed; pip install 'iossim[cluster]'")

SCENARIO = small_study(cross_evaluate=["device"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_cluster_writes_the_same(tmp_path: Path, processes: bool) -> None:
    run_study(SCENARIO, tmp_path / "here", workers=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1 if processes else 2, processes=processes, dashboard_address=None
    ) as cluster:
        run = run_study(SCENARIO, tmp_path / "cluster", executor="dask", address=cluster.scheduler_address)
    assert files_of(tmp_path / "cluster") == files_of(tmp_path / "here")
    attempt = run.environment["attempts"][0]
    assert (attempt["executor"], attempt["workers"]) == ("dask", 2 if processes else 4)


@pytest.mark.slow
def test_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.study.workers._PATIENCE", "1s")
    with pytest.raises(OptionError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1") as refused:
        run_study(SCENARIO, tmp_path / "run", executor="dask", address="tcp://127.0.0.1:1")
    assert "\n" not in str(refused.value)
