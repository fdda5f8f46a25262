"""Extraction over several workers: Ray shards the items, each worker writes a file of its own.

The driver never loads the model. Shards are contiguous parts of the items, so that merging them in
order gives the rows of one extraction. Each is an ordinary cache that resumes; a worker that dies
is started again by Ray and goes on where its file ends. All workers must see the output's folder.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import torch

from activations.backend import ModelBackend
from activations.cache import ActivationCache, verify
from activations.compression import require_compression, write_compressed
from activations.extraction import extract
from activations.portable import merge_caches
from activations.running import running
from activations.spec import ModelSpec
from interp.errors import CacheError, InterpError, ModelError
from interp.files import partial_path
from interp.items import Item, item_from_record, item_to_record, items_sha256
from interp.vocabulary import Compression, Store, TokenRule

__all__ = ["Job", "extract_job", "extract_on_ray", "require_ray", "shard_paths"]


_RESTARTS: Final = 3
"""How often a worker is started again before the run is given up."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker is told.

    Attributes:
        spec: the model.
        adapter: PEFT adapter folder to attach.
        source: of all items, from `describe_source`.
        token_rule: the token at which residual streams are read.
        store: number type of the file.
        batch_tokens: padded tokens a batch.
        prefix_sharing: see `extract`.
        file_locking: see `extract`.
        compression: see `extract`.
    """

    spec: ModelSpec
    adapter: Path | None
    source: Mapping[str, Any]
    token_rule: TokenRule = "last_prompt"
    store: Store = "float32"
    batch_tokens: int = 2048
    prefix_sharing: bool = True
    file_locking: bool = True
    compression: Compression = "none"


def extract_job(
    job: Job,
    backend: ModelBackend,
    items: Sequence[Item],
    out: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> ActivationCache:
    """`extract` in this process, with the settings of a job."""
    return extract(
        backend,
        items,
        out,
        source=dict(job.source),
        token_rule=job.token_rule,
        store=job.store,
        batch_tokens=job.batch_tokens,
        prefix_sharing=job.prefix_sharing,
        file_locking=job.file_locking,
        compression=job.compression,
        progress=progress,
    )


def require_ray() -> None:
    """Raise `ModelError` that names the extra, if Ray is not installed."""
    if find_spec("ray") is None:
        raise ModelError(
            "--engine ray needs the package ray, which is not installed. Install it with: "
            "pip install 'interp[ray]'"
        )


def shard_paths(out: Path, workers: int) -> list[Path]:
    """Where the shards of a file are while they are written."""
    return [out.with_name(f"{out.name}.shard-{i + 1}-of-{workers}") for i in range(workers)]


def extract_on_ray(
    job: Job,
    items: Sequence[Item],
    out: Path,
    *,
    workers: int,
    progress: Callable[[int], None] = lambda _: None,
) -> ActivationCache:
    """Write the activations of all items to `out`, on a Ray cluster or on a local one.

    The cluster is that of `RAY_ADDRESS`; without one, `workers` processes are started here. Each
    worker has a GPU of its own where the cluster has enough, else a CPU.

    Args:
        job: model and settings.
        items: what to run, in the order of the file's rows.
        out: of the finished cache; must not exist.
        workers: shards, and processes that run them.
        progress: called with the number of items of each finished shard.

    Raises:
        ModelError: Ray is not installed, or a worker cannot run the model.
        CacheError: `out` exists or was begun in another way, or the merged file is not sound.
    """
    require_ray()
    require_compression(job.compression)
    if not 1 <= workers <= len(items):
        raise ModelError(
            f"--workers is {workers} for {len(items)} items; expected at least one and no more "
            f"than there are items."
        )
    paths = shard_paths(out, workers)
    _refuse_others(out, paths)
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = [[items[i] for i in index] for index in np.array_split(np.arange(len(items)), workers)]
    rows = [
        {"path": str(path.resolve()), "items": json.dumps([item_to_record(item) for item in part])}
        for path, part in zip(paths, parts, strict=True)
    ]
    with _cluster(workers) as ray:
        gpus = ray.cluster_resources().get("GPU", 0) >= workers and job.spec.device != "cpu"
        shards = ray.data.from_items(rows, override_num_blocks=workers).map(
            _Worker,
            fn_constructor_args=(_with_whole_paths(job),),
            # A worker that is ready early must not take the shard of one that is not.
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
            **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
        )
        try:
            for row in shards.iter_rows():
                if row["error"]:
                    name = Path(row["path"]).name
                    raise ModelError(f"The worker of {name} failed. {row['error']}")
                progress(int(row["n"]))
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [""]
            raise ModelError(
                f"The Ray cluster could not finish ({type(error).__name__}: {lines[-1][:300]}). "
                f"What the shards beside {out} hold is kept; run the same command again."
            ) from error
    if workers == 1:
        paths[0].replace(out)
    else:
        merge_caches(out, paths)
    _require_sound(out, items)
    if job.compression != "none":
        with h5py.File(out, "r") as file:
            write_compressed(file, out)
    for path in paths:
        path.unlink(missing_ok=True)
    return ActivationCache.open(out, file_locking=job.file_locking)


def _with_whole_paths(job: Job) -> Job:
    """The job for workers that run in another folder."""
    spec = job.spec
    if spec.kind != "hub":
        spec = replace(spec, location=str(Path(spec.location).resolve()))
    adapter = None if job.adapter is None else job.adapter.resolve()
    return replace(job, spec=spec, adapter=adapter)


class _Worker:
    """Runs in a process of its own: loads the model once, and extracts the shards it is given."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        self.job = job
        self.backend: Any = None
        self.error = ""
        # Closed by the end of the process.
        self._open = ExitStack()
        try:
            self.backend = self._open.enter_context(running(job.spec, job.adapter))
        except InterpError as error:
            self.error = str(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Extract one shard; what is the input's fault comes back as text."""
        items = tuple(item_from_record(record) for record in json.loads(row["items"]))
        error = self.error
        if not error:
            source = dict(self.job.source) | {"n": len(items), "items_sha256": items_sha256(items)}
            try:
                # Compressed once, when the shards are merged.
                job = replace(self.job, source=source, compression="none")
                extract_job(job, self.backend, items, Path(row["path"])).close()
            except InterpError as fault:
                error = str(fault)
        return {"path": row["path"], "n": len(items), "error": error}


@contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """Ray, connected; a cluster that is started here ends here."""
    with warnings.catch_warnings():
        # Ray warns about its own options.
        warnings.simplefilter("ignore")
        import ray
        import ray.data

        started = not ray.is_initialized()
        if started:
            # Workers import this very installation, wherever the driver runs.
            root = str(Path(__file__).resolve().parents[1])
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers}
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": {"PYTHONPATH": path}},
                **local,
            )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        try:
            yield ray
        finally:
            if started:
                ray.shutdown()


def _refuse_others(out: Path, paths: Sequence[Path]) -> None:
    """Raise `CacheError` where another engine or number of workers has begun the same file."""
    if out.exists():
        raise CacheError(f"{out} exists already. Choose another --out, or remove it.")
    if partial_path(out).exists():
        raise CacheError(
            f"{partial_path(out)} was begun with --engine local. Finish it so, or remove it."
        )
    names = {path.name for path in paths} | {partial_path(path).name for path in paths}
    others = [p.name for p in out.parent.glob(f"{out.name}.shard-*") if p.name not in names]
    if others:
        raise CacheError(
            f"{others[0]} beside {out} is a shard of a run with another number of workers. Use "
            f"that number, or remove it."
        )


def _require_sound(out: Path, items: Sequence[Item]) -> None:
    with ActivationCache.open(out) as cache:
        faults = verify(cache)
        if cache.item_id != tuple(item.item_id for item in items):
            faults.append("rows are not in the order of the items")
    if faults:
        raise CacheError(f"{out} was merged, but is not sound: {'; '.join(faults)}.")
