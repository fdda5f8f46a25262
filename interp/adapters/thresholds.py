"""The numbers that the verdict rests on, with what each was calibrated against.

Two scales are used. With the base model at hand, the relative norm rho = ‖ΔW‖_F / ‖W‖_F of a
weight matrix; without it, max|ΔW| against the size of weights that language models have (about
0.02). Calibration of rho on SmolLM2-135M with adapters of rank 8 on q and v: rho 1e-5 gives a KL
divergence of 1e-6 at the answer position and identical decoding; 1e-4 gives 1e-4, still
identical; at 3e-4 five of eight greedy texts stay equal; 1e-3 gives 1e-2; from 1e-2 on, the KL
is above 0.25 and no text stays equal. benchmarks/adapter_calibration.py measures again, with random
and with trained directions; docs/adapters.md has its table.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = [
    "COHERENT_KAPPA",
    "DEFAULT_FAIL_ON",
    "EXTREME_RHO",
    "NEGLIGIBLE_DELTA",
    "NEGLIGIBLE_RHO",
    "NOISE_KAPPA",
    "NOISE_KAPPA_LEAST",
    "RECOMPUTED_RHO",
    "SAME_BASE_COSINE",
    "SINGULAR_VALUES_KEPT",
    "VERDICTS",
    "WEAK_DELTA",
    "WEAK_RHO",
    "Verdict",
]

Verdict = Literal[
    "broken", "indeterminate", "untrained", "negligible", "weak", "effective", "extreme"
]
"""In the order in which the rules are tried."""

VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

DEFAULT_FAIL_ON: Final[tuple[Verdict, ...]] = ("broken", "untrained", "negligible")
"""Verdicts that make `interp adapters audit` exit with code 3."""

NEGLIGIBLE_RHO: Final = 1e-4
"""At it all greedy texts were the base's in the calibration above, and 7 of 8 in our own, with
trained directions (docs/adapters.md); at 1e-5 all were."""

WEAK_RHO: Final = 1e-3
"""Below it most greedy texts are still the base's."""

EXTREME_RHO: Final = 0.5
"""Above it the update is of the size of the weights themselves. Advisory."""

NEGLIGIBLE_DELTA: Final = 1.5e-5
"""A quarter of bfloat16's half-ulp at 0.02 (6.1e-5): a merge into bfloat16 rounds it away."""

WEAK_DELTA: Final = 2.4e-4
"""Two bfloat16 ulps at 0.02 (1.2e-4 each)."""

NOISE_KAPPA: Final = 2.9
"""Largest RMS(B)/√Σlr² seen when gradients are pure noise; the typical value is 1."""

NOISE_KAPPA_LEAST: Final = 0.3
"""Below it B has moved less than noise moves it: weights that are barely in the loss, or zeroed."""

COHERENT_KAPPA: Final = 8.0
"""Smallest RMS(B)/√Σlr² seen when gradients keep pointing one way (8 to 10)."""

RECOMPUTED_RHO: Final = 1e-6
"""Over ‖W‖_F: below it a change is what computing PiSSA's or OLoRA's start anew may be off by."""

SAME_BASE_COSINE: Final = 0.5
"""Cosine of a fine-tuned matrix and its base's, below which they are of two models. Models trained
apart come out near 0, and a change of 0.5 of the weights' size (`extreme`) still near 0.9."""

SINGULAR_VALUES_KEPT: Final = 64
"""Singular values that a result keeps for each module, largest first."""
