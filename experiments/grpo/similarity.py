"""A second score of open answers beside ROUGE-L: cosine similarity under a sentence encoder.

ROUGE-L credits shared words, whether or not the answer is right (ToMAS, section V, names this as a
limitation). An encoder is any function from texts to vectors; a local one comes with an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interp.errors import TrainingError

__all__ = ["Encoder", "load_encoder", "similarities"]

Encoder = Callable[[Sequence[str]], NDArray[np.float64]]
"""From n texts to (n, d) vectors."""


def load_encoder(path: Path) -> Encoder:
    """A sentence encoder from a local folder; nothing is downloaded.

    Raises:
        TrainingError: the extra is not installed, or the folder holds no encoder.
    """
    if not path.is_dir():
        raise TrainingError(
            f"There is no folder {path}; expected a sentence encoder, as sentence-transformers "
            f"saves it. Download one first."
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise TrainingError(
            f"The similarity score needs sentence-transformers ({error}). Install it with: "
            f"pip install 'interp[similarity]'"
        ) from error
    try:
        model = SentenceTransformer(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} holds no sentence encoder ({error}).") from error

    def encode(texts: Sequence[str]) -> NDArray[np.float64]:
        return np.asarray(model.encode(list(texts), show_progress_bar=False), dtype=np.float64)

    return encode


def similarities(
    encoder: Encoder, answers: Sequence[str], golds: Sequence[str]
) -> NDArray[np.float64]:
    """(n,) cosine of each answer with its gold; 0 for an empty answer or a zero vector.

    Raises:
        TrainingError: the encoder gives other than one finite vector a text.
    """
    texts = sorted({*answers, *golds} - {""})
    if not texts:
        return np.zeros(len(answers))
    vectors = np.asarray(encoder(texts), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise TrainingError(
            f"The sentence encoder gave an array of shape {vectors.shape} for {len(texts)} texts; "
            f"expected one finite vector each."
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = dict(zip(texts, vectors / np.where(norms > 0, norms, 1), strict=True))
    return np.array(
        [
            float(units[answer] @ units[gold]) if answer and gold else 0.0
            for answer, gold in zip(answers, golds, strict=True)
        ]
    )
