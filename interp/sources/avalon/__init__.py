"""Avalon: an exact possible-worlds engine and the items generated from it.

`rules` holds the tables, `scenario` one state of a game, `worlds` and `claims` decide what holds
in it, `statements` phrases true and false claims, `source` hands them out as items. The JSON
forms are documented in `docs/avalon.md`. Importing the package loads nothing heavy.
"""
