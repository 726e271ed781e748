"""Section of ``gpu_report.py`` that runs modules of torchvision and timm: ``iossim.torch.compile`` beside ``torch.compile``.

Both on the same module and image, in bf16 with channels last, in rounds that alternate; PyTorch's in a CUDA graph. A module is
recorded as begun first: one that ended the section is not tried again by the next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from statistics import geometric_mean
from typing import Any

from gpu_report_job import Job, probe_torch
from gpu_report_records import REPORT, read_records
from gpu_report_runs import timing_of_networks

#: By name: package, and height and width of the image.
MODULES = {
    "googlenet": ("torchvision", 224), "inception_v3": ("torchvision", 299), "resnet50": ("torchvision", 224),
    "mobilenet_v2": ("torchvision", 224), "densenet121": ("torchvision", 224), "vit_b_16": ("torchvision", 224),
    "hrnet_w18": ("timm", 224), "efficientnet_b0": ("timm", 224), "convnext_tiny": ("timm", 224),
    "nasnetalarge": ("timm", 331),
}  # fmt: skip
BATCHES = (1, 32)
#: Name of a module that is made here, for machines without a GPU.
DRY = "two_branches"
#: With less time left none is begun: Inductor compiles a large one for a minute.
LEAST_S = 90.0


def section_modules(job: Job) -> None:
    """Every module at each batch; those of packages that are not installed are skipped."""
    from iossim.backends.torch_cuda.backend import missing

    if "not installed" in (reason := missing()):
        job.skip("modules of PyTorch", reason)
        return
    if not job.dry:
        job.probes.append(probe_torch)
    begun = {(row["name"], row["batch"]) for row in read_records(job.out / REPORT) if row["record"] == "module-begun"}
    names = (DRY,) if job.dry else tuple(MODULES)
    for batch in (1,) if job.dry else BATCHES:
        for name in names:
            package, size = MODULES.get(name, ("torch", 32))
            item = f"module {name}, batch {batch}"
            if find_spec(package) is None:
                job.skip(item, f"{package} is not installed")
            elif (name, batch) in begun:
                continue
            elif not job.dry and job.left_s < LEAST_S:
                job.leave(item)
            else:
                job.record("module-begun", name=name, batch=batch)
                with job.told(item):
                    times = measured(job, made(name, package), batch, size)
                    job.record("module", name=name, batch=batch, **times)


def made(name: str, package: str) -> Any:
    """A module with random weights, in inference mode."""
    import torch

    torch.manual_seed(0)
    if package == "torchvision":
        import torchvision

        more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **more).eval()
    if package == "timm":
        import timm

        return timm.create_model(name, pretrained=False).eval()

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (torch.nn.Conv2d(3, 8, kernel, padding=kernel // 2) for kernel in (1, 3))

        def forward(self, image: Any) -> Any:
            return torch.cat([torch.relu(self.left(image)), torch.nn.functional.silu(self.right(image))], 1)

    return Branches().eval()


def measured(job: Job, module: Any, batch: int, size: int) -> dict[str, float]:
    """Median microseconds of each way; a dry run has no compiler but iossim's."""
    import torch

    import iossim.torch
    from iossim.backends.torch_cuda.timing import Run, prepared, time_rounds

    place = "cpu" if job.dry else "cuda"
    dtype = torch.float32 if job.dry else torch.bfloat16
    module = module.to(place, dtype, memory_format=torch.channels_last)
    image = torch.randn(batch, 3, size, size).to(place, dtype, memory_format=torch.channels_last)
    with torch.inference_mode():
        ours = iossim.torch.compile(module, (image,), **({"device": "h100-sxm"} if job.dry else {}))
        runs = {"iossim": Run(lambda: ours(image), replay=not job.dry)}
        if job.dry:
            runs["torch-eager"] = prepared("torch-eager", module, [image], captured=False)
        else:
            compiled = torch.compile(module, fullgraph=True, dynamic=False)
            runs["torch-compile"] = prepared("torch-compile", compiled, [image], captured=True)
        samples = time_rounds(list(runs.values()), timing_of_networks(job), place)
    return {name: each.median_us for name, each in zip(runs, samples, strict=True)}


def beside_pytorch(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each module and batch: its times, and how much faster iossim is; then the geometric mean of batch 1."""
    rows = {(row["batch"], row["name"]): row for row in records if row["record"] == "module"}
    lines: list[str] = []
    faster: dict[int, list[float]] = {}
    for (batch, name), row in sorted(rows.items()):
        other = next(key for key in row if key.startswith("torch-"))
        faster.setdefault(batch, []).append(row[other] / row["iossim"])
        us = f"{row['iossim'] / 1e3:9.3f} {row[other] / 1e3:10.3f} {faster[batch][-1]:6.2f}"
        lines.append(f"{name:<20} {batch:>5} {us}  iossim.torch.compile; {other}")
    head = f"{'module':<20} {'batch':>5} {'iossim ms':>9} {'PyTorch ms':>10} {'times':>6}"
    means = [f"geometric mean, batch {batch:<9} {geometric_mean(all_of):22.2f}" for batch, all_of in faster.items()]
    return [head, *lines, *means] if lines else []
