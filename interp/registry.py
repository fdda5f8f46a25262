"""Item sources by name: `facts`, `csv:PATH`, and whatever a plug-in registers.

A source is registered by a decorator on its factory. Third parties declare an entry point in the
group `interp.item_sources`; it is loaded when its name is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, TypeVar

from interp.errors import SourceError, did_you_mean
from interp.items import Item, items_sha256, require_unique_ids

__all__ = [
    "ENTRY_POINT_GROUP",
    "ItemSource",
    "SourceFactory",
    "SourceInfo",
    "describe_source",
    "list_sources",
    "load_items",
    "open_source",
    "register_source",
    "split_options",
    "with_options",
]

ENTRY_POINT_GROUP: Final = "interp.item_sources"
_BUILTIN_MODULES: Final = (
    "interp.sources.avalon",
    "interp.sources.coordqa",
    "interp.sources.facts",
    "interp.sources.partners",
    "interp.sources.tabular",
    "interp.sources.tomas",
    "interp.sources.unco",
)


class ItemSource(Protocol):
    """Where items come from.

    Attributes:
        name: as it was opened, argument included (`facts:capitals`).
        version: of the source; raise it whenever the items change.
        license: of the items.
        views: names of the prompts it can build, the default first.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def license(self) -> str: ...
    @property
    def views(self) -> tuple[str, ...]: ...

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """The items under one view; `n=None` means all of a file, a default of a generator."""
        ...

    def fingerprint(self) -> str:
        """Hex digest of what the items are made from: version, argument, file content."""
        ...


class SourceFactory(Protocol):
    """Opens a source from the text after the colon and a map from our fields to its columns."""

    def __call__(self, argument: str | None, field_map: Mapping[str, str]) -> ItemSource: ...


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What `interp sources` prints of a source.

    Attributes:
        name: registered name, without argument.
        usage: how it is written on the command line.
        summary: one line.
        license: of the items.
        factory: opens it.
        distribution: the installed package it comes from.
        options: names that its argument may hold, as `NAME` or `NAME=VALUE` between commas.
    """

    name: str
    usage: str
    summary: str
    license: str
    factory: SourceFactory
    distribution: str = "interp"
    options: tuple[str, ...] = ()


_Factory = TypeVar("_Factory", bound=SourceFactory)

_REGISTRY: dict[str, SourceInfo] = {}


def register_source(
    name: str,
    *,
    usage: str,
    summary: str,
    license: str,
    distribution: str = "interp",
    options: tuple[str, ...] = (),
) -> Callable[[_Factory], _Factory]:
    """Decorator that registers a source factory under `name`.

    Raises:
        SourceError: the name is taken by another factory.
    """

    def register(factory: _Factory) -> _Factory:
        taken = _REGISTRY.get(name)
        if taken is not None:
            raise SourceError(
                f"The item source {name!r} of {distribution!r} has the name of one that "
                f"{taken.distribution!r} registered already. Rename one of them."
            )
        _REGISTRY[name] = SourceInfo(name, usage, summary, license, factory, distribution, options)
        return factory

    return register


def _load_builtin() -> None:
    for module in _BUILTIN_MODULES:
        import_module(module)


def _plugins() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name in found:
            raise SourceError(
                f"Two installed packages declare the item source {point.name!r}: "
                f"{_distribution(found[point.name])} and {_distribution(point)}. Uninstall one."
            )
        found[point.name] = point
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _load_plugin(point: EntryPoint) -> None:
    before = _REGISTRY.get(point.name)
    if before is not None and before.distribution == _distribution(point):
        return
    try:
        point.load()
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(
            f"The item source {point.name!r} of the installed package {_distribution(point)!r} "
            f"failed to load ({type(error).__name__}: {error}). Update or uninstall it."
        ) from error
    if point.name not in _REGISTRY or _REGISTRY[point.name] is before:
        raise SourceError(
            f"The installed package {_distribution(point)!r} declares the item source "
            f"{point.name!r}, but {point.value} does not register it with @register_source."
        )


def list_sources() -> tuple[SourceInfo, ...]:
    """All sources, plug-ins loaded, sorted by name."""
    _load_builtin()
    for point in _plugins().values():
        _load_plugin(point)
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def open_source(spec: str, field_map: Mapping[str, str] | None = None) -> ItemSource:
    """Open the source that `spec` names.

    Args:
        spec: `NAME` or `NAME:ARGUMENT`, for instance `facts:capitals` or `csv:items.csv`.
        field_map: for tabular sources, from our field names to the file's columns.

    Raises:
        SourceError: unknown name (near matches listed), or the source refuses the argument.
    """
    name, colon, argument = spec.partition(":")
    return _named(name).factory(argument if colon else None, field_map or {})


def _named(name: str) -> SourceInfo:
    _load_builtin()
    plugins = _plugins()
    if name in plugins:
        _load_plugin(plugins[name])
    if name not in _REGISTRY:
        raise SourceError(
            f"There is no item source {name!r}. {did_you_mean(name, {*_REGISTRY, *plugins})} "
            f"`interp sources` lists them all."
        )
    return _REGISTRY[name]


def with_options(spec: str, options: Mapping[str, str | None]) -> str:
    """`spec` with options written into it: how command-line flags reach a source.

    Args:
        spec: `NAME` or `NAME:ARGUMENT`.
        options: name to value, None for an option that is just named.

    Raises:
        SourceError: the source has no such option.
    """
    if not options:
        return spec
    name, _, argument = spec.partition(":")
    known = _named(name).options
    for option in options:
        if option not in known:
            raise SourceError(
                f"The item source {name!r} has no option {option!r}; it takes "
                f"{', '.join(known) or 'none'}."
            )
    written = [key if value is None else f"{key}={value}" for key, value in options.items()]
    return f"{name}:{','.join([*[argument] * bool(argument), *written])}"


def split_options(
    argument: str | None, known: Sequence[str]
) -> tuple[str | None, dict[str, str | None]]:
    """Take a source's argument apart: what is no option, and the options at its end.

    Args:
        argument: the text after the colon, for instance `PATH,inject-truth`.
        known: the source's option names.

    Raises:
        SourceError: an option is given twice.
    """
    parts = argument.split(",") if argument else []
    options: dict[str, str | None] = {}
    while parts:
        name, equals, value = (part.strip() for part in parts[-1].partition("="))
        if name not in known:
            break
        if name in options:
            raise SourceError(f"The option {name!r} is given twice in {argument!r}.")
        options[name] = value if equals else None
        parts.pop()
    return ",".join(parts) or None, options


def describe_source(
    source: ItemSource, items: Sequence[Item], *, view: str | None, seed: int
) -> dict[str, Any]:
    """What a manifest says of the items: where they come from and their digest."""
    return {
        "name": source.name,
        "version": source.version,
        "fingerprint": source.fingerprint(),
        "view": view or source.views[0],
        "n": len(items),
        "seed": seed,
        "items_sha256": items_sha256(items),
    }


def load_items(
    source: ItemSource, *, view: str | None = None, n: int | None = None, seed: int = 0
) -> tuple[Item, ...]:
    """The source's items, with the checks that hold for every source.

    Args:
        source: an open source.
        view: one of `source.views`; None takes the first.
        n: how many; None means all of a file, or a generator's default.
        seed: of every random choice in the source.

    Raises:
        SourceError: unknown view, `n` below 1 or more than the source can give.
        ItemError: the source breaks the item contract.
    """
    if view is not None and view not in source.views:
        raise SourceError(
            f"{source.name!r} has no view {view!r}. {did_you_mean(view, source.views)}"
        )
    if n is not None and n < 1:
        raise SourceError(f"--n is {n}; ask for at least 1 item.")
    items = source.items(view=view or source.views[0], n=n, seed=seed)
    if n is not None and len(items) != n:
        raise SourceError(f"{source.name!r} gave {len(items)} items where {n} were asked for.")
    if not items:
        raise SourceError(f"{source.name!r} gave no items; expected at least one.")
    require_unique_ids(items, repr(source.name))
    return items
