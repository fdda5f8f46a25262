"""Two pickles of a trainer's checkpoint, read without executing anything in them."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["WANTED", "read_parameter_groups", "read_training_arguments"]

_MOST_PICKLE: Final = 16 * 2**20
WANTED: Final = ("adam_beta1", "adam_beta2", "learning_rate", "optim", "seed", "weight_decay")
"""Training arguments that are looked for."""


def read_parameter_groups(path: Path) -> list[Mapping[str, Any]]:
    """`param_groups` of a saved optimiser, read with `weights_only`; empty if that fails."""
    if not path.is_file():
        return []
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - junk can end the reader of pickles in any way
        return []
    groups = loaded.get("param_groups") if isinstance(loaded, Mapping) else None
    return [g for g in groups if isinstance(g, Mapping)] if isinstance(groups, list) else []


def read_training_arguments(path: Path) -> dict[str, str | float | int]:
    """A few plain values out of `training_args.bin`, by looking at its opcodes.

    The file is a pickle of an arbitrary object. Nothing is unpickled: the opcodes are listed, and
    the constant that follows a wanted name is taken. Empty where that does not work.
    """
    try:
        if path.stat().st_size > _MOST_PICKLE:
            return {}
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            if archive.getinfo(name).file_size > _MOST_PICKLE:
                return {}
            atoms = list(_atoms(archive.read(name)))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - so can it here; the arguments are an extra
        return {}
    found: dict[str, str | float | int] = {}
    for place, atom in enumerate(atoms):
        if isinstance(atom, str) and atom in WANTED and atom not in found:
            following = atoms[place + 1 : place + 4]
            if atom == "optim":
                # An enumeration: the names of its class may come before its value, or before the
                # name of the member, which Python up to 3.11.3 writes instead.
                names = [f for f in following if isinstance(f, str)]
                plain = next(
                    (f for f in names if (f.islower() or f.isupper()) and "." not in f), None
                )
                if plain is not None:
                    found[atom] = plain.lower()
            elif following and isinstance(following[0], float | int):
                found[atom] = following[0]
    return found


def _atoms(data: bytes) -> Iterator[str | float | int | None]:
    """Constants of a pickle in the order in which they are pushed."""
    memo: dict[int, str | float | int | None] = {}
    last: str | float | int | None = None
    n_memo = 0
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            key = n_memo if opcode.name == "MEMOIZE" else int(argument or 0)
            n_memo += 1
            memo[key] = last
        elif opcode.name in ("BINGET", "LONG_BINGET", "GET"):
            last = memo.get(int(argument or 0))
            yield last
        elif opcode.name in ("NEWTRUE", "NEWFALSE", "NONE"):
            last = {"NEWTRUE": 1, "NEWFALSE": 0, "NONE": None}[opcode.name]
            yield last
        elif opcode.name != "GLOBAL" and isinstance(argument, str | float | int):
            last = argument
            yield last
        else:
            last = None
