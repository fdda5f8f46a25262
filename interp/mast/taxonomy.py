"""The 14 failure modes of MAST by code; FC2, inter-agent misalignment, are 2.1 to 2.6."""

from __future__ import annotations

from typing import Final

__all__ = ["FC2_CODES", "MAST_CODES", "MODE_NAMES"]

MODE_NAMES: Final = {
    "1.1": "disobey task specification",
    "1.2": "disobey role specification",
    "1.3": "step repetition",
    "1.4": "loss of conversation history",
    "1.5": "unaware of termination conditions",
    "2.1": "conversation reset",
    "2.2": "fail to ask for clarification",
    "2.3": "task derailment",
    "2.4": "information withholding",
    "2.5": "ignored other agents' input",
    "2.6": "reasoning-action mismatch",
    "3.1": "premature termination",
    "3.2": "no or incomplete verification",
    "3.3": "incorrect verification",
}
"""Short name of each mode (Cemri et al. 2025, figure 1)."""

MAST_CODES: Final = tuple(MODE_NAMES)
FC2_CODES: Final = tuple(code for code in MAST_CODES if code.startswith("2."))
