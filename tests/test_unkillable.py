"""An extraction that is killed at any moment goes on, and ends with the very same file.

One warm parent forks children that run the extraction; a child is killed at a random moment, and
the next one goes on. Half of the kills fall on a random call of Python code (between two writes, in
a flush, while the file is made or finished), half on a random point in processor time (inside a
write, inside a pass). Compressing a finished file and merging shards are killed in the same way.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

PARENT = """
import json, os, random, signal, sys
from pathlib import Path

import h5py
import numpy as np
import torch

from activations import ActivationCache, ModelSpec, describe_source, extract, load_backend
from activations.cache import verify
from interp import load_items, open_source
from interp.files import partial_path

torch.set_num_threads(1)
model, folder = sys.argv[1], Path(sys.argv[2])
source = open_source("facts")
items = load_items(source, n=32, seed=2)
backend = load_backend(ModelSpec.parse(model, device="cpu"))

def run(out, some=items, **options):
    # Prompts share a prefix, so both kinds of passes are run.
    whose = describe_source(source, some, view=None, seed=2)
    extract(backend, some, out, source=whose, batch_tokens=200, **options).close()


def at_call(number, after=None):
    # SIGKILL at the number-th call of a Python function or of a C function, counted from the call
    # of a function named `after`.
    seen, counting = 0, after is None

    def count(frame, event, argument):
        nonlocal seen, counting
        counting = counting or frame.f_code.co_name == after
        seen += counting
        if counting and seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    return lambda: seen


def at_time(seconds):
    # Processor time, so that other processes do not matter. The signal has no handler: it ends
    # the process where it stands, like SIGKILL.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def child(out, arm, work=run):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            arm()
            work(out)
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(9)
    _, status, used = os.wait4(pid, 0)
    return status, used.ru_utime + used.ru_stime


def arrays(path):
    with h5py.File(path) as file:
        found = {name: dataset[:] for name, dataset in file.items()} | dict(file.attrs)
    # Bytes of numbers, so that NaN equals NaN; texts as they are.
    plain = {name: np.asarray(value) for name, value in found.items()}
    return {n: v.tolist() if v.dtype.hasobject else v.tobytes() for n, v in plain.items()}


def counted(work, out, after=None):
    # Calls of functions that some work makes, counted as above.
    file = folder / "counted"
    sys.stdout.flush()
    if os.fork() == 0:
        seen = at_call(-1, after)
        work(out)
        sys.setprofile(None)
        file.write_text(str(seen()))
        os._exit(0)
    os.wait()
    return int(file.read_text())
"""

EXTRACTION = """
whole = folder / "whole.h5"
run(whole)  # in the parent: everything is warm
expected = arrays(whole)
status, seconds = child(folder / "timed.h5", lambda: None)
assert status == 0
calls = counted(run, folder / "counted.h5")

moments = random.Random(0)
report = []
for index in range(20):
    out = folder / f"killed{index}.h5"
    if index % 2:
        number = moments.randrange(1, calls)
        status, _ = child(out, lambda: at_call(number))
    else:
        limit = moments.uniform(0.02, 0.98) * seconds
        status, _ = child(out, lambda: at_time(limit))
    there = partial_path(out)
    done = None
    if out.exists():
        state = "finished"
    elif there.exists():
        state = "partial"
        # What is marked as done is whole and right, whenever the process died.
        with ActivationCache.open(there, allow_unfinished=True) as cache:
            done = int(cache.done.sum())
            with ActivationCache.open(whole) as right:
                rows = cache.done
                assert np.array_equal(cache.resid_post(2)[rows], right.resid_post(2)[rows])
                assert np.array_equal(cache.answer_logits[rows], right.answer_logits[rows])
    else:
        state = "nothing"
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status)
    again, _ = child(out, lambda: None)
    with ActivationCache.open(out) as cache:
        faults = verify(cache)
    report.append({
        "killed": killed, "state": state, "done": done, "again": again, "faults": faults,
        "same": arrays(out) == expected, "left": partial_path(out).exists(),
    })
print(json.dumps(report))
"""


REWRITING = """
from activations.portable import merge_caches

whole, small = folder / "whole.h5", folder / "small.h5"
run(whole)
run(small, compression="blosc")
parts = [folder / "a.h5", folder / "b.h5"]
run(parts[0], items[:15])
run(parts[1], items[15:])
merge_caches(folder / "merged.h5", parts)
expected = {"compress": arrays(small), "merge": arrays(folder / "merged.h5")}
shards = [path.read_bytes() for path in parts]


def compress(out):
    run(out, compression="blosc")


def merge(out):
    merge_caches(out, parts)


def at_unlink():
    right = Path.unlink

    def unlink(path, **options):
        if path.suffix == ".partial":
            os.kill(os.getpid(), signal.SIGKILL)
        right(path, **options)

    Path.unlink = unlink


moments = random.Random(1)
report = []
for name, work, after in (
    ("compress", compress, "write_compressed"),
    ("merge", merge, None),
):
    calls = counted(work, folder / f"{name}.h5", after)
    for index in range(8):
        out = folder / f"{name}{index}.h5"
        number = moments.randrange(1, calls)
        arm = lambda: at_call(number, after)
        if (name, index) == ("compress", 7):
            # Where the compressed file has its name, and the other one is still there.
            arm = at_unlink
        status, _ = child(out, arm, work)
        finished = out.exists()
        if finished:
            with ActivationCache.open(out) as cache:
                assert verify(cache) == []
        again = 0 if name == "merge" and finished else child(out, lambda: None, work)[0]
        report.append({
            "work": name, "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status),
            "finished": finished, "again": again, "same": arrays(out) == expected[name],
            "shards": [path.read_bytes() for path in parts] == shards,
            "left": partial_path(out).exists(),
        })
print(json.dumps(report))
"""


def report_of(body: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    run = subprocess.run(
        [sys.executable, "-c", PARENT + body, str(model), str(folder)],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report: list[dict[str, Any]] = json.loads(run.stdout)
    return report


def test_twenty_kills_over_one_extraction_change_no_bit(tmp_path: Path, model_folder: Path) -> None:
    report = report_of(EXTRACTION, model_folder, tmp_path)
    assert len(report) == 20
    for entry in report:
        assert entry["again"] == 0
        assert entry["faults"] == []
        assert entry["same"]
        assert not entry["left"]
    # The control: nearly all were killed, at different places of the work.
    assert sum(entry["killed"] in (9, 27) for entry in report) >= 15, report
    stopped_at = {entry["done"] for entry in report if entry["state"] == "partial"}
    assert len(stopped_at) >= 5, report


def test_kills_while_a_file_is_compressed_or_merged_lose_nothing(
    tmp_path: Path, model_folder: Path
) -> None:
    pytest.importorskip("hdf5plugin", reason="the extra blosc is not installed")
    report = report_of(REWRITING, model_folder, tmp_path)
    assert len(report) == 16
    for entry in report:
        assert entry["again"] == 0
        assert entry["same"]
        assert entry["shards"]
        assert not entry["left"]
    assert (report[7]["killed"], report[7]["finished"]) == (9, True)
    # The control: work that was not finished was killed, of both kinds.
    for name in ("compress", "merge"):
        cut = [e for e in report if e["work"] == name and e["killed"] == 9 and not e["finished"]]
        assert len(cut) >= 4, report
