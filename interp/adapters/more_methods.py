"""ΔW of PEFT's newer methods that have a closed formula, and of tuned norms.

What PEFT applies is the reference; the tests compare with its merge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from interp.adapters.building import factored, fault, open_question, plain
from interp.adapters.delta import Dense, LowRank
from interp.adapters.updates import Context, Group, Update, multiplied, working

__all__ = [
    "c3a_updates",
    "delora_updates",
    "fourier_updates",
    "gralora_updates",
    "hira_updates",
    "miss_updates",
    "norm_updates",
    "pvera_updates",
    "road_updates",
    "shira_updates",
    "vblora_updates",
]


def norm_updates(group: Group, context: Context) -> Iterator[Update]:
    """Norms are saved whole and compared with the base as such: no other tensors belong here."""
    del context
    yield fault(group, "bad_shape", f"has {', '.join(sorted(group.tensors))} beside its norm")


def fourier_updates(group: Group, context: Context) -> Iterator[Update]:
    """Scaled real part of the inverse Fourier transform of a few entries (Gao et al., 2024).

    Each entry is a wave of rank 2, so that ΔW is a product of the waves' sides. Where the entries
    lie is drawn from a seed, for which the sizes of the base are needed.
    """
    spectrum = group.tensors["fourierft_spectrum"]
    still = not bool(spectrum.any())
    shape = _sides(group, context)
    if shape is None:
        yield open_question(group, starts_zero=still)
        return
    out, inner = shape
    raw = context.config.raw
    generator = torch.Generator().manual_seed(int(raw.get("random_loc_seed") or 777))
    places = torch.randperm(out * inner, generator=generator)[: spectrum.numel()]
    rows = (2 * math.pi / out) * (places // inner)
    columns = (2 * math.pi / inner) * (places % inner)
    down = torch.arange(out, dtype=torch.float64)[:, None] * rows
    along = columns[:, None] * torch.arange(inner, dtype=torch.float64)
    sized = down.cos() * spectrum.double(), -down.sin() * spectrum.double()
    scale = float(raw.get("scaling", 150.0)) / (out * inner)
    left, right = torch.cat(sized, dim=1), torch.cat((along.cos(), along.sin()))
    yield factored(group, context, left, right, scale, starts_zero=still, rank=None)


def vblora_updates(group: Group, context: Context) -> Iterator[Update]:
    """B A, whose pieces are mixtures of the vectors of one shared bank (Li et al., 2024)."""
    first, second = group.tensors["vblora_logits_A"], group.tensors["vblora_logits_B"]
    bank = group.shared.get("vblora_vector_bank")
    if bank is None:
        yield fault(group, "unpaired_factors", "has no bank of vectors")
        return
    n_mixed = int(context.config.raw.get("topk", 2))

    def mixed(logits: torch.Tensor) -> torch.Tensor:
        values, which = logits.double().topk(n_mixed, dim=-1)
        return (values.softmax(dim=-1)[..., None] * bank.double()[which]).sum(dim=-2)

    a = mixed(first).reshape(first.shape[0], -1)
    b = mixed(second).transpose(1, 2).reshape(-1, second.shape[1])
    yield factored(group, context, b, a, 1.0, starts_zero=False, rank=len(a))


def miss_updates(group: Group, context: Context) -> Iterator[Update]:
    """One small block repeated over the inputs (Kang and Yin, 2024); "bat" multiplies W with it."""
    block = group.tensors["miss_block"]
    still = not bool(block.any())
    kind = context.config.raw.get("init_weights")
    if kind == "bat":
        yield _bat(group, context, block, still)
        return
    shape = _sides(group, context)
    if shape is None:
        yield open_question(group, starts_zero=still)
        return
    out, inner = shape
    if block.ndim != 2 or 0 in block.shape or out % block.shape[1]:
        yield fault(group, "bad_shape", f"has a block of {tuple(block.shape)} for {out} outputs")
        return
    if kind == "mini":
        block = block.repeat(1, out // block.shape[1])
    rank = block.shape[0]
    # Input c takes row c mod r of the block.
    right = torch.eye(rank, dtype=working(block))[:, torch.arange(inner) % rank]
    yield factored(group, context, block.T, right, 1.0, starts_zero=still, rank=rank)


def _bat(group: Group, context: Context, block: torch.Tensor, still: bool) -> Update:
    """Of each r×r tile of W, in the p-th row of tiles: W M_p + M_p."""
    rank = block.shape[-1]
    shape = _sides(group, context)
    if block.ndim != 3 or block.shape[1] != rank or (shape and shape[0] != len(block) * rank):
        return fault(group, "bad_shape", f"has blocks of {tuple(block.shape)}")

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        dtype = working(weight, block)
        tiles = weight.to(dtype).reshape(len(weight), -1, rank)
        index = torch.arange(start, stop)
        own = block.to(dtype)[index // rank]
        added = own[torch.arange(len(index)), index % rank][:, None]
        return (torch.einsum("iqk,ikj->iqj", tiles, own) + added).flatten(1)

    return multiplied(group, context, "method", rows, starts_zero=still)


def road_updates(group: Group, context: Context) -> Iterator[Update]:
    """(R − I) W and (R − I) b: pairs of outputs turned and scaled (Liao and Monz, 2024)."""
    raw = context.config.raw
    size, variant = int(raw.get("group_size", 64)), raw.get("variant", "road_1")
    theta, alpha = group.tensors["road_theta"], group.tensors["road_alpha"]
    still = not bool(theta.any()) and bool((alpha == 1).all())
    wide = working(theta, alpha)
    angles = torch.stack((theta.to(wide), theta.to(wide)))
    scales = torch.stack((alpha.to(wide), alpha.to(wide)))
    if variant == "road_1":
        angles, scales = (
            t.reshape(2, -1, size // 2).repeat_interleave(2, dim=1).flatten(1)
            for t in (angles, scales)
        )
    elif variant == "road_4":
        angles, scales = (
            t[0].reshape(-1, 2, size).transpose(0, 1).flatten(1) for t in (angles, scales)
        )
    kept, turned = scales[0] * angles[0].cos(), scales[1] * angles[1].sin()
    n = kept.numel()
    place = torch.arange(n) % size
    other = torch.arange(n) + torch.where(place < size // 2, size // 2, -(size // 2))
    sign = torch.where(place < size // 2, -1.0, 1.0).to(wide)

    def changed(whole: torch.Tensor) -> Dense:
        dtype = working(whole, kept)

        def rows(start: int, stop: int) -> torch.Tensor:
            part = slice(start, stop)
            own, its = whole[part].to(dtype), whole[other[part]].to(dtype)
            return (kept[part, None] - 1) * own + (sign * turned)[part, None] * its

        return Dense(whole.shape[0], whole.shape[1], rows)

    for leaf in ("weight", "bias"):
        name = f"{group.module}.{leaf}"
        origin = None if context.base is None else context.base.get(name)
        if origin is None:
            if leaf == "weight":
                yield open_question(group, starts_zero=still)
            continue
        matrix = origin.reshape(len(origin), -1)
        if len(matrix) != n:
            raise ValueError(f"{n} angles of {len(matrix)} outputs")
        yield Update(
            name,
            group.module,
            "bias" if leaf == "bias" else "method",
            delta=changed(matrix),
            starts_zero=still,
            origin=origin,
        )


def shira_updates(group: Group, context: Context) -> Iterator[Update]:
    """A few entries of W, each with a change of its own (Bhardwaj et al., 2024)."""
    values, places = group.tensors["shira_weight"], group.tensors["shira_indices"].long()
    if places.shape != (2, values.numel()) or bool((places < 0).any()):
        yield fault(group, "unpaired_factors", f"has {values.numel()} values for other places")
        return
    shape = _sides(group, context) or tuple(int(side) + 1 for side in places.max(dim=1).values)
    order = places[0].argsort(stable=True)
    row, column, values = places[0][order], places[1][order], values.to(working(values))[order]

    def rows(start: int, stop: int) -> torch.Tensor:
        first, last = torch.searchsorted(row, torch.tensor([start, stop])).tolist()
        found = torch.zeros(stop - start, shape[1], dtype=values.dtype)
        part = slice(first, last)
        return found.index_put_((row[part] - start, column[part]), values[part], accumulate=True)

    delta = Dense(shape[0], shape[1], rows)
    yield plain(group, context, delta, starts_zero=not bool(values.any()))


def c3a_updates(group: Group, context: Context) -> Iterator[Update]:
    """Circulant blocks over the number of inputs (Chen et al., 2025)."""
    kernel = group.tensors["c3a_kernel"]
    n_out, n_in, size = kernel.shape
    own = kernel.to(working(kernel)) / (n_in * size)

    def rows(start: int, stop: int) -> torch.Tensor:
        index = torch.arange(start, stop)
        shift = (torch.arange(size) - (index % size)[:, None]) % size
        return own[index // size].gather(2, shift[:, None].expand(-1, n_in, -1)).flatten(1)

    delta = Dense(n_out * size, n_in * size, rows)
    yield plain(group, context, delta, starts_zero=not bool(kernel.any()))


def delora_updates(group: Group, context: Context) -> Iterator[Update]:
    """λ/r · Σ bᵢaᵢᵀ/(‖bᵢ‖‖aᵢ‖) with columns scaled by the base's norms (Bini et al., 2025)."""
    a, b = group.tensors["delora_A"].double(), group.tensors["delora_B"].double()
    size, norms = group.tensors["delora_lambda"], group.tensors["delora_w_norm"]
    rank = len(a)
    if b.shape[1] != rank or norms.numel() != a.shape[1]:
        yield fault(group, "unpaired_factors", f"has B of {tuple(b.shape)} for rank {rank}")
        return
    lengths = a.norm(dim=1).clamp(min=1e-4) * b.norm(dim=0).clamp(min=1e-4)
    still = not bool(b.any())
    scale = float(size) / rank
    yield factored(group, context, b / lengths, a * norms, scale, starts_zero=still, rank=rank)


def gralora_updates(group: Group, context: Context) -> Iterator[Update]:
    """N×N blocks, each with factors of its own, and plain factors beside them (Jung et al., 2025).

    Block (s, n) has the s-th part of the columns of A_n and the n-th part of the rows of B_s.
    """
    a, b = group.tensors["gralora_A"], group.tensors["gralora_B"]
    n, inner, rank = a.shape
    if b.shape[:2] != (n, rank) or rank % n:
        what = f"has B of {tuple(b.shape)} for A of {tuple(a.shape)}"
        yield fault(group, "unpaired_factors", what)
        return
    out, part = b.shape[2], rank // n
    dtype = working(a, b)
    left, right = (
        torch.zeros(n, out, n, n, part, dtype=dtype),
        torch.zeros(n, n, part, n, inner, dtype=dtype),
    )
    for block in range(n):
        # Columns of `left` and rows of `right`: (s, n, entry of the part).
        left[block, :, block] = b[block].reshape(n, part, out).permute(2, 0, 1).to(dtype)
        right[:, block, :, block] = a[block].T.reshape(n, part, inner).to(dtype)
    left, right = left.reshape(n * out, -1), right.reshape(-1, n * inner)
    raw = context.config.raw
    extra_a, extra_b = (group.tensors.get(f"gralora_{side}_general") for side in "AB")
    if (extra_a is None) != (extra_b is None) or bool(raw.get("hybrid_r")) != (extra_a is not None):
        yield fault(group, "unpaired_factors", "lacks one of the two plain factors")
        return
    still = not bool(b.any())
    hybrid = 0
    if extra_a is not None and extra_b is not None:
        hybrid = len(extra_a)
        left = torch.cat((left, extra_b.to(dtype)), dim=1)
        right = torch.cat((right, extra_a.to(dtype)))
        still = still and not bool(extra_b.any())
    scale = float(raw.get("alpha", 64)) / (rank + hybrid)
    yield factored(group, context, left, right, scale, starts_zero=still, rank=rank + hybrid)


def hira_updates(group: Group, context: Context) -> Iterator[Update]:
    """W ∘ BA (Huang et al., 2025)."""
    embedding = "hira_embedding_A" in group.tensors
    name = "hira_embedding" if embedding else "hira"
    a, b = (group.tensors.get(f"{name}_{side}") for side in "AB")
    if a is None or b is None or b.ndim != a.ndim or (a.ndim == 2 and b.shape[1] != len(a)):
        yield fault(group, "unpaired_factors", "has no pair of factors")
        return
    still = not bool((a if embedding else b).any())
    if a.ndim != 2:
        yield open_question(group, starts_zero=still, why="HiRA of a convolution, no formula here")
        return
    dtype = working(a, b)
    product = LowRank(b.to(dtype)[None], a.to(dtype)[None], 1.0)

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return weight.to(working(weight, product.left)) * product.rows(start, stop)

    turned = embedding or context.turned(group.module)
    yield multiplied(
        group,
        context,
        "method",
        rows,
        layout="transposed" if turned else "plain",
        starts_zero=still,
        a=a,
        b=b,
        rank=len(a),
    )


def pvera_updates(group: Group, context: Context) -> Iterator[Update]:
    """VeRA whose A gives a mean and a variance; merged, and without sampling, it is the mean."""
    lambda_b, lambda_d = group.tensors["pvera_lambda_b"], group.tensors["pvera_lambda_d"]
    still = not bool(lambda_b.any())
    a, b = group.shared.get("pvera_A"), group.shared.get("pvera_B")
    shape = _sides(group, context)
    if a is None or b is None or shape is None:
        yield open_question(group, starts_zero=still)
        return
    rank = len(a) // 2
    left = lambda_b[:, None] * b[: lambda_b.shape[0]]
    right = lambda_d[:rank, None] * a[:rank, : shape[1]]
    yield factored(group, context, left, right, 1.0, starts_zero=still, rank=rank)


def _sides(group: Group, context: Context) -> tuple[int, int] | None:
    """Output and input features of a module, from the base."""
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    if origin is None or origin.ndim != 2:
        return None
    out, inner = origin.shape[::-1] if context.turned(group.module) else origin.shape
    return int(out), int(inner)
