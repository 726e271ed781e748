"""``iossim microbatch``: convolutions divided along their batch, so that faster algorithms fit the workspace."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import Writer, json_file, pictures, present, wants_plot, wrapped
from iossim.cli.progress import progress_bars


@command
def microbatch(
    model: str | None = None,
    device: str | None = None,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    engine: str = "auto",
    cost_model: str = "simulator",
    store: Path | None = None,
    table: Path | None = None,
    workspace: str | None = None,
    total_workspace: str | None = None,
    memory_limit: str | None = None,
    policy: str = "all",
    direction: str = "forward",
    as_json: bool = False,
    out: Path | None = None,
    plot: bool | None = None,
) -> None:
    """Divide the batch of each convolution so that a faster algorithm fits the workspace, as u-cuDNN does.

    The micro-batches of a kernel run one after another in one workspace. With --workspace each kernel has its own
    limit; with --total-workspace all share one, divided by an integer program; with --memory-limit activations share
    it too.
    """
    from iossim import api
    from iossim.base.user_files import check_writable
    from iossim.microbatching import microbatch_api
    from iossim.microbatching.convolutions_in_micro_batches import runnable_schedule
    from iossim.microbatching.words import front_figure, micro_batch_table, total_words, trust_lines, workspace_figure
    from iossim.models.load import load

    if (model is None) == (table is None):
        reason = "needs a model or a table" if model is None else "takes a model or a table, not both"
        raise OptionError(f"microbatch {reason}; give MODEL --device NAME, or --table BENCH.json")
    if out is not None:
        check_writable(out)
    if table is not None:
        given = {
            "--device": device is not None,
            "--dtype": dtype is not None,
            "--store": store is not None,
            "--memory-limit": memory_limit is not None,
            "--engine": engine != "auto",
            "--cost-model": cost_model != "simulator",
            "--pass": direction != "forward",
        }
        if needless := [name for name, is_given in given.items() if is_given]:
            reason = "a table holds the times of its kernels, and nothing else counts"
            raise OptionError(f"{reason}; leave {needless[0]} out, or give a MODEL")
        found = microbatch_api.microbatch_table(
            table, batch=batch, policy=policy, workspace=workspace, total_workspace=total_workspace
        )
        title = f"{table.name}, policy {policy}"
    else:
        if device is None and cost_model == "simulator":
            raise OptionError("microbatch needs a device; give --device NAME ('iossim devices list' shows them)")
        # A schedule to be written needs gradients as separate ops; their kernels are known without.
        training = out is not None and direction == "training"
        network = load(model, batch=batch, dtype=dtype, training=training)
        prices = api.cost_model(cost_model, device, network.precision, engine, store)
        with progress_bars(quiet=as_json, unit="sizes", tells_rest=True) as bars:
            found = microbatch_api.microbatch(
                network,
                device,
                cost_model=prices,
                policy=policy,
                workspace=workspace,
                total_workspace=total_workspace,
                memory_limit=memory_limit,
                direction=direction,
                progress=bars("benchmarks"),
            )
        named = f", {prices.identity.engine} engine" if prices.identity.engine else ""
        where = f"{network.name} on {prices.identity.device}, batch {network.source.batch}, {network.precision}{named}"
        title = f"{where}, {direction}, policy {policy}"
    limits = {"a kernel": workspace, "all kernels": total_workspace, "the network": memory_limit}
    title += "".join(f", {size} for {what}" for what, size in limits.items() if size)

    def files() -> dict[str, Writer]:
        made: dict[str, Writer] = {"microbatch.json": json_file(found.to_json())}
        if wants_plot(plot):
            made |= pictures(front_figure(found, title), workspace_figure(found, title))
        return made if model is None else {**made, "schedule.json": runnable_schedule(found, network, prices).save}

    parts = [wrapped(title, "bold"), micro_batch_table(found), *map(wrapped, (total_words(found), *trust_lines(found)))]
    present(found.to_json, parts, as_json, out=out, files=files)
