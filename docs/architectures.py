"""Write `docs/architectures.md` from what `tests/families.py` measures.

Run from the repository's root: python docs/architectures.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]

HEAD = """# Architectures

Written by `python docs/architectures.py` with transformers {version};
`tests/test_architectures.py` checks every row. Each family is built at toy size with random
weights. A batch of unequal lengths is captured and compared, layer by layer, with each sequence
run alone and unpadded under independent hooks, with `output_hidden_states` (all layers but the
last, which transformers gives after the final norm), and with the logits of the last token.
"Equal" is a largest relative difference below {tolerance:.0e} in float32.

| family | configuration | captures | padded left | shared prefix | steering | packed |
|---|---|---|---|---|---|---|
"""

FOOT = """
What the words mean in use:

- **refused**: the extraction ends with an error. Blocks of Gemma 3n pass on several streams at
  once, so there is no one residual stream to read.
- **differs** under left padding: the state of a recurrent family runs through the padding. Captures
  and forced choices pad on the right and are right. Greedy answers pad on the left, so for these
  families use `--batch-tokens 1`, which runs one item at a time.
- **not possible** after a shared prefix: what the family keeps is not keys and values alone.
  Extraction then runs every prompt in full and says so.
- **not possible** for steering: the same; steering then runs every cell from the first token and
  says so. (Qwen3-Next would continue rightly; Jamba, with the same kind of state, would be wrong by
  100%, so neither is continued.)

- **packed** (on a CPU): sequences are run one after another in one row, so that no padding is run,
  and a shared prefix is attended to once for a whole batch. "No": they are padded (attention
  windows, biases, sinks or caps, attention that transformers does not let others replace, states
  that run on from token to token). Both ways are compared with the reference above.

The list of blocks is found without a table: it is the outermost module list with as many entries as
the configuration has layers. Remote code is never run, so a family that transformers does not ship
cannot be loaded. Families that are not listed may work; the self-check that every extraction
ends with compares rerun items whatever the family.
"""


def main() -> None:
    """Measure every family and write the document."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    families = run_path(str(ROOT / "tests" / "families.py"), run_name="families")
    rows = [families["table_row"](name, families["measure"](name)) for name in families["FAMILIES"]]
    head = HEAD.format(version=transformers.__version__, tolerance=families["TOLERANCE"])
    path = ROOT / "docs" / "architectures.md"
    path.write_text(head + "\n".join(rows) + "\n" + FOOT, encoding="utf-8")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
