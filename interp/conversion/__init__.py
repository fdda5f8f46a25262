"""From failure traces to coded traces: the conversion pass of ToMAS.

`log` is the conversion log, `session` one coder's pass in a terminal, `sheet` the same in a
spreadsheet, `accounting` and `agreement` the tables, `pilot` a stratified sample. Documented in
`docs/tomas.md`.
"""

from interp.conversion.accounting import Accounting, account
from interp.conversion.agreement import Agreement, agree
from interp.conversion.log import CODES, ConversionEntry, ConversionLog, read_log

__all__ = [
    "CODES",
    "Accounting",
    "Agreement",
    "ConversionEntry",
    "ConversionLog",
    "account",
    "agree",
    "read_log",
]
