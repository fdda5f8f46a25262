"""Words that the command line, the Python interface and the files share."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = [
    "ANSWER_CONDITIONS",
    "AnswerCondition",
    "ClosedForm",
    "Compression",
    "Dtype",
    "Engine",
    "Grouping",
    "HookPoint",
    "Library",
    "ProbeKind",
    "Quantization",
    "Reasoning",
    "Solver",
    "Store",
    "TokenRule",
    "TransferKind",
]

TokenRule = Literal["last_prompt", "statement_end", "answer_stub"]
"""Where residual streams are read. `last_prompt`: last token of the prompt, after the generation
prompt; `statement_end`: last token of the bare statement; `answer_stub`: last token of the stub
`ANSWER:`."""

HookPoint = Literal["resid_pre", "resid_post"]
"""`resid_pre`: the input of a block; `resid_post`: its output, before any final norm."""

Library = Literal["hf", "transformer_lens", "nnsight"]
"""What runs a model: `hf` is plain transformers."""

Engine = Literal["local", "ray"]
"""Where an extraction runs: in this process, or on the workers of a Ray cluster."""

Compression = Literal["none", "blosc"]
"""Of activations in a finished cache file; `blosc` is blosc-lz4."""

Quantization = Literal["int8", "int4"]
"""Of weights, by bitsandbytes; activations keep the model's dtype."""

Dtype = Literal["float32", "bfloat16", "float16"]
"""Of weights and activations while a model runs."""

Store = Literal["float32", "float16"]
"""Of activations in a cache file."""

Grouping = Literal["group", "none"]
"""`group` keeps every `group_id` in one fold; `none` ignores groups, and so may leak."""

GROUPS_IGNORED: Final = "Groups ignored, p not valid"
"""What stands before every result of a sweep with grouping `none`: items of one group on both sides
of a split leak, and permuted items are not independent."""

Solver = Literal["batched", "sklearn"]
"""`batched`: many label vectors and strengths at once in torch; `sklearn`: scikit-learn, converged,
as the reference."""

ClosedForm = Literal["mass_mean", "ridge", "lda"]
"""Probes with a closed form: difference of means under a shared covariance, least squares, linear
discriminant analysis."""

ProbeKind = Literal["logistic", "mass_mean", "ridge", "lda"]
"""What is fitted to the activations."""

TransferKind = Literal["category", "template"]
"""What a probe is trained without, and tested on."""

AnswerCondition = Literal["forced", "greedy"]
"""`forced`: the larger of two logits after the stub; `greedy`: parsed from generated text."""

ANSWER_CONDITIONS: Final = get_args(AnswerCondition)

Reasoning = Literal["base", "cot", "no_cot"]
"""How a prompt asks for its answer. `base`: as the source writes it, which leaves it open; `cot`:
to think step by step first; `no_cot`: to answer at once."""
