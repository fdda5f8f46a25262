"""Files in the schema of MAST-Data, written here: its runs, its null records, and annotations laid
out so that the inventory tables of the paper come out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FC2", "NULL", "RUNS", "mast_records", "write_mast"]

# trace.key -> (mas_name, benchmark_name, llm_name, records, FC2-positive ones). Records as in the
# public audit of the file; positives so that the units add up to the paper's tables, with MetaGPT's
# families as in its conversion table. Of AG2/GSM, ChatDev and Magentic the paper gives only sums.
RUNS = {
    "AG2_GSM_Plus_Claude": ("AG2", "GSM", "Claude", 193, 110),
    "AG2_GSM_Plus_GPT4o": ("AG2", "GSM", "GPT-4o", 30, 17),
    "AG2_MMLU_GPT4o_Mini": ("AG2", "MMLU", "GPT-4o-mini", 168, 100),
    "AG2_Olympiad_GPT4o": ("AG2", "Olympiad", "GPT-4o", 206, 131),
    "AppWorld_Test-C_GPT-4o": ("AppWorld", "Test-C", "GPT-4o", 30, 6),
    "ChatDev_ProgramDev-v2_CodeLlama": ("ChatDev", "ProgramDev-v2", "CodeLlama", 100, 11),
    "ChatDev_ProgramDev-v2_Qwen": ("ChatDev", "ProgramDev-v2", "Qwen", 100, 29),
    "ChatDev_ProgramDev2_GPT4o": ("ChatDev", "ProgramDev", "GPT-4o", 100, 9),
    "ChatDev_ProgramDev_GPT4o": ("ChatDev", "ProgramDev", "GPT-4o", 30, 4),
    "HyperAgent_SWE-Bench-Lite_Claude": ("HyperAgent", "SWE-Bench-Lite", "Claude", 30, 6),
    "MagenticOne_GAIA_GPT4o": ("Magentic", "GAIA", "GPT-4o", 30, 18),
    "Magentic_One_GPT4o": ("Magentic", "GAIA", "GPT-4o", 165, 85),
    "MetaGPT_ProgramDev-v2_CodeLlama": ("MetaGPT", "ProgramDev-v2", "CodeLlama", 100, 86),
    "MetaGPT_ProgramDev-v2_Qwen": ("MetaGPT", "ProgramDev-v2", "Qwen", 100, 31),
    "MetaGPT_ProgramDev2_Claude": ("MetaGPT", "ProgramDev", "Claude", 100, 47),
    "MetaGPT_ProgramDev2_GPT4o": ("MetaGPT", "ProgramDev", "GPT-4o", 100, 44),
    "MetaGPT_ProgramDev_GPT4o": ("MetaGPT", "ProgramDev", "GPT-4o", 30, 9),
    "OpenManus_ProgramDev_GPT4o": ("OpenManus", "ProgramDev", "GPT-4o", 30, 6),
}
NULL = {("ChatDev_ProgramDev-v2_CodeLlama", number) for number in (4, 72, 73, 81)}
CODES = ("1.1", "1.2", "1.3", "1.4", "1.5", *(f"2.{n}" for n in range(1, 7)), "3.1", "3.2", "3.3")
FC2 = tuple(code for code in CODES if code[0] == "2")
_AGENTS = ("Planner", "Coder", "Tester", "Reviewer")
_SAID = ('write "module_{}"', "check C:\\run{}", "the hour field is {}", "naïve pass {} – done")


def _lengths(total: int, rng: np.random.Generator) -> np.ndarray:
    """Trajectory lengths with the spread of the real ones, scaled to a sum."""
    n = sum(run[3] for run in RUNS.values())
    drawn = np.exp(rng.normal(np.log(9746), 2.25, n))
    factor = 1.0
    for _ in range(20):  # clipping moves the sum, so scale again
        lengths = np.clip(drawn * factor, 200, 2_004_123)
        factor *= total / lengths.sum()
    return lengths.astype(int)


def _annotation(positive: bool, rng: np.random.Generator) -> dict[str, int]:
    labels = dict(zip(CODES, (rng.random(14) < 0.3).astype(int).tolist(), strict=True))
    labels |= dict.fromkeys(FC2, 0)
    if positive:
        marked = rng.random(6) < 0.4
        marked[rng.integers(6)] = True
        labels |= dict(zip(FC2, marked.astype(int).tolist(), strict=True))
    return labels


def mast_records(size: int = 2_000_000, seed: int = 0) -> Iterator[dict[str, Any]]:
    """1,642 records of about `size` characters altogether, in the file's order of keys."""
    rng = np.random.default_rng(seed)
    lengths = iter(_lengths(size, rng))
    said = "".join(
        f"{_AGENTS[n % 4]}: I will {_SAID[rng.integers(4)].format(n)}.\n" for n in range(2000)
    )
    said *= 1 + 2_100_000 // len(said)
    for key, (framework, benchmark, model, n, n_fc2) in RUNS.items():
        labelled = [number for number in range(n) if (key, number) not in NULL]
        positive = set(rng.choice(labelled, n_fc2, replace=False).tolist())
        for number in range(n):
            head = f"Task {number} of {key}\n"
            null = (key, number) in NULL
            yield {
                "mas_name": framework,
                "llm_name": model,
                "benchmark_name": benchmark,
                "trace_id": number,
                "trace": {
                    "key": key,
                    "index": number,
                    "trajectory": head + said[: next(lengths) - len(head)],
                },
                "mast_annotation": dict.fromkeys(CODES)
                if null
                else _annotation(number in positive, rng),
            }


def write_mast(path: Path, records: Iterator[dict[str, Any]] | None = None) -> Path:
    """Write a file as the release has it: one JSON array."""
    with path.open("w", encoding="utf-8") as handle:
        for number, record in enumerate(mast_records() if records is None else records):
            handle.write(",\n" if number else "[")
            json.dump(record, handle, ensure_ascii=False)
        handle.write("]\n")
    return path
