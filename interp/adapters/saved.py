"""Tensors that replace the base's own: saved modules, biases, embeddings, single tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from interp.adapters.base import BaseModel
from interp.adapters.delta import Dense, Layout, to_matrix
from interp.adapters.findings import finding
from interp.adapters.rounding import as_stored, widened
from interp.adapters.updates import Context, Group, Kind, Update, misfit, working

__all__ = ["saved_update", "token_updates"]

_VOCABULARIES = (
    *("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight"),
    *("lm_head.weight", "lm_head.bias", "embed_out.weight", "output.weight", "decoder.weight"),
    *("decoder.bias", "embed_in.weight", "predictions.bias"),
)


def saved_update(
    name: str, module: str, tensor: torch.Tensor, base: BaseModel | None, *, bias: bool
) -> Update:
    """A tensor that stands in for the base's parameter of the same name.

    A vocabulary that was resized is compared on the rows that both have; that it was resized is
    a change in itself.

    Args:
        name: of the parameter.
        module: that it belongs to.
        tensor: its new value.
        base: None if not given: then the change is not known.
        bias: whether it is a bias that was trained as one.
    """
    kind: Kind = "bias" if bias else "saved"
    origin = None if base is None else base.get(name)
    if origin is None:
        if base is None:
            return Update(name, module, kind, complete=False)
        unknown = finding(
            "saved_tensors_unverified",
            f"{name} is not in the base.",
            remedy="A new head has nothing to be compared with: judge it by the task.",
        )
        return Update(name, module, kind, complete=False, findings=(unknown,))
    findings = []
    resized = tensor.shape != origin.shape
    if tensor.shape != origin.shape:
        # Vocabularies are resized, inner widths are not: these are another model's.
        if not name.endswith(_VOCABULARIES) or tensor.shape[1:] != origin.shape[1:]:
            group = Group(module, 0, {})
            return misfit(group, str(tuple(tensor.shape)), tuple(origin.shape))
        findings.append(
            finding(
                "base_tensors_saved",
                f"{name} has {tensor.shape[0]} rows, the base {origin.shape[0]}: it was resized.",
            )
        )
        findings.append(
            finding(
                "saved_tensors_unverified",
                f"{name} has {tensor.shape[0]} rows, the base {origin.shape[0]}: what the others "
                f"do cannot be compared.",
                remedy="Judge added or removed tokens by the task.",
            )
        )
        n_rows = min(tensor.shape[0], origin.shape[0])
        tensor, origin = tensor[:n_rows], origin[:n_rows]
    layout: Layout = "conv" if tensor.ndim > 2 else "plain"
    # Compared as it is stored: rounding on the way to a file is no training.
    before = as_stored(origin, tensor)
    tensor = widened(tensor)
    new, old = to_matrix(tensor, layout), to_matrix(before, layout)
    dtype = working(new, old)
    return Update(
        name,
        module,
        kind,
        layout=layout,
        delta=Dense(
            new.shape[0],
            new.shape[1],
            lambda start, stop: new[start:stop].to(dtype) - old[start:stop].to(dtype),
        ),
        starts_zero=not resized and bool(torch.equal(tensor.to(dtype), before.to(dtype))),
        # What new rows do to answers is not in the rows that both have.
        complete=not resized,
        origin=origin,
        findings=tuple(findings),
    )


def token_updates(group: Group, context: Context) -> Iterator[Update]:
    """Rows of an embedding that are replaced by trained ones."""
    rows = group.tensors["trainable_tokens_delta"]
    name = f"{group.module}.weight"
    index = _indices(group.module, context.config.token_indices)
    if index is None or len(index) != rows.shape[0]:
        yield Update(
            name,
            group.module,
            "tokens",
            findings=(
                finding(
                    "bad_shape",
                    f"{group.module} has {rows.shape[0]} trained tokens, the config names "
                    f"{0 if index is None else len(index)}.",
                ),
            ),
        )
        return
    origin = None if context.base is None else context.base.get(name)
    if origin is None:
        yield Update(name, group.module, "tokens", complete=False, index=index)
        return
    if max(index, default=0) >= origin.shape[0] or rows.shape[1] != origin.shape[1]:
        yield misfit(group, f"({max(index) + 1} or more, {rows.shape[1]})", tuple(origin.shape))
        return
    kept = origin[list(index)]
    old, rows = as_stored(kept, rows), widened(rows)
    dtype = working(rows, old)
    yield Update(
        name,
        group.module,
        "tokens",
        delta=Dense.of(rows.to(dtype) - old.to(dtype)),
        starts_zero=bool(torch.equal(rows.to(dtype), old.to(dtype))),
        index=index,
        origin=kept,
    )


def _indices(module: str, by_name: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    for name, rows in by_name.items():
        if not name or module == name or module.endswith(f".{name}"):
            return rows
    return None
