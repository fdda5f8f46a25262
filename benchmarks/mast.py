"""The MAST inventory: streamed against `json.load`, on a file of the real one's size.

Each side runs in a child process of its own, so that its peak memory is its own. The two sides are
alternated; medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def streamed(path: Path) -> tuple[int, int]:
    from interp.mast import read_split, take_inventory

    split = take_inventory(path, read_split("step1")).summary()["split"]
    return split["train"]["fc2"], split["hold_out"]["fc2"]


def loaded(path: Path) -> tuple[int, int]:
    from interp.mast import read_split
    from interp.mast.inventory import inventory_of
    from interp.mast.records import parse_record

    with path.open(encoding="utf-8") as handle:
        records = [parse_record(record, "") for record in json.load(handle)]
    split = inventory_of(records, read_split("step1")).summary()["split"]
    return split["train"]["fc2"], split["hold_out"]["fc2"]


def child(side: str, path: Path) -> None:
    start = time.perf_counter()
    counts = {"streamed": streamed, "loaded": loaded}[side](path)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mib": peak, "counts": counts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=190_000_000, help="characters of trajectories")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("SIDE", "PATH"))
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    from mast_files import mast_records, write_mast

    with tempfile.TemporaryDirectory() as folder:
        path = write_mast(Path(folder) / "mad.json", mast_records(options.size))
        print(f"{path.stat().st_size / 1e6:.1f} MB")
        runs: dict[str, list[dict[str, float]]] = {"streamed": [], "loaded": []}
        for _ in range(options.repeats):
            for side, results in runs.items():
                command = [sys.executable, __file__, "--child", side, str(path)]
                out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                results.append(json.loads(out))
    for side, results in runs.items():
        seconds = statistics.median(result["seconds"] for result in results)
        peak = max(result["mib"] for result in results)
        print(f"{side}: {seconds:.2f} s, peak {peak:.0f} MiB, {results[0]['counts']}")
        if side == "streamed" and (seconds >= 60 or peak >= 500):
            raise SystemExit("over the limit of 60 s and 500 MiB")


if __name__ == "__main__":
    main()
