"""The registry, the shadow guard, and rules that hold for the whole house."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from interp import list_sources, load_items, open_source, register_source
from interp.errors import InterpError, ShadowedPackageError, SourceError
from interp.guard import require_siblings

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("interp", "activations", "probes", "steering", "figures", "experiments")


def modules() -> list[str]:
    names = list(PACKAGES)
    for package in PACKAGES:
        path = [str(ROOT / package)]
        names += [m.name for m in pkgutil.walk_packages(path, prefix=f"{package}.")]
    return names


def python(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([*([str(path)] if path else []), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("name", modules())
def test_every_export_exists_and_is_listed_once(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if name in ("experiments", "interp.agents", "interp.sources"):
        assert exported is None  # rooms without anything of their own
        return
    assert exported, f"{name} has no __all__"
    assert len(set(exported)) == len(exported)
    assert all(hasattr(module, export) for export in exported)
    assert list(exported) == sorted(
        exported, key=lambda e: (not e.isupper(), not e[0].isupper(), e)
    )


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import interp", ("torch", "numpy", "transformers", "h5py")),
        ("from experiments.cli import app", ("torch", "numpy", "transformers", "h5py")),
        (
            "import sys\nfrom experiments.cli import app\nsys.argv = ['interp', '--help']\n"
            "try:\n    app()\nexcept SystemExit:\n    pass",
            ("torch", "numpy", "transformers", "h5py", "matplotlib"),
        ),
        ("import figures", ("torch", "transformers")),
        ("from activations import ActivationCache", ("torch", "transformers")),
        ("import activations.portable", ("torch", "transformers")),
    ],
)
def test_imports_stay_light(code: str, forbidden: tuple[str, ...]) -> None:
    check = f"{code}\nimport sys\nprint('HEAVY', [m for m in {forbidden!r} if m in sys.modules])"
    run = python(check)
    assert run.returncode == 0, run.stderr
    assert "HEAVY []" in run.stdout


@pytest.mark.parametrize("hidden", ["probes", "figures", "interp"])
def test_a_shadowed_package_is_named(tmp_path: Path, hidden: str) -> None:
    (tmp_path / f"{hidden}.py").write_text("x = 1\n")
    code = "import experiments" if hidden != "probes" else "import experiments.expression_gap"
    run = python(code, path=tmp_path)
    assert run.returncode != 0
    assert str(tmp_path / f"{hidden}.py") in run.stderr
    assert "PYTHONPATH" in run.stderr


def test_the_guard_accepts_its_own_house_only() -> None:
    require_siblings(str(ROOT / "probes" / "__init__.py"), "interp", "activations")
    with pytest.raises(ShadowedPackageError, match="json"):
        require_siblings(str(ROOT / "probes" / "__init__.py"), "json")


def test_no_file_is_two_rooms() -> None:
    sources = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    assert len(sources) > 30
    assert not [str(p) for p in sources if len(p.read_text().splitlines()) > 400]


def test_builtin_sources_are_listed() -> None:
    assert {"csv", "facts", "jsonl", "truth"} <= {info.name for info in list_sources()}


def test_an_unknown_source_lists_near_matches() -> None:
    with pytest.raises(SourceError, match=r"no item source 'fact'.*Did you mean facts"):
        open_source("fact")
    with pytest.raises(SourceError, match=r"Known: .*facts"):
        open_source("zzz")


def test_a_duplicate_name_is_refused() -> None:
    list_sources()
    with pytest.raises(SourceError, match=r"'mine'.*'facts'|'facts'.*'mine'"):
        register_source("facts", usage="", summary="", license="", distribution="mine")(
            lambda argument, field_map: None  # type: ignore[arg-type]
        )


PLUGIN = """
from interp import Item, Message, register_source

@register_source("weather", usage="weather", summary="s", license="MIT", distribution="weatherdist")
class Weather:
    name, version, license, views = "weather", "1", "MIT", ("full",)
    def __init__(self, argument, field_map): pass
    def fingerprint(self): return "f"
    def items(self, *, view, n, seed):
        item = Item("a", (Message("user", "Rain?"),), True, None, "g", "c", {"statement": "Rain."})
        return (item,) * COUNT
"""


def install(tmp_path: Path, body: str, distribution: str = "weatherdist") -> None:
    """An installed package with an entry point, as pip would leave it."""
    (tmp_path / "weatherplug.py").write_text(body)
    info = tmp_path / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[interp.item_sources]\nweather = weatherplug\n")


def test_a_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    install(tmp_path, PLUGIN.replace("COUNT", "1"))
    run = python(
        "from interp import *\nprint(load_items(open_source('weather'))[0].statement)\n"
        "print([i.distribution for i in list_sources() if i.name == 'weather'])",
        path=tmp_path,
    )
    assert run.stdout.splitlines() == ["Rain.", "['weatherdist']"], run.stderr


def test_a_plugin_that_repeats_ids_is_refused(tmp_path: Path) -> None:
    install(tmp_path, PLUGIN.replace("COUNT", "2"))
    run = python("from interp import *\nload_items(open_source('weather'))", path=tmp_path)
    assert "more than once" in run.stderr


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('no sun')", ["weatherdist", "RuntimeError: no sun"]),
        ("x = 1", ["weatherdist", "does not register"]),
    ],
)
def test_a_broken_plugin_names_its_distribution_and_spares_the_others(
    tmp_path: Path, body: str, words: list[str]
) -> None:
    install(tmp_path, body)
    run = python("from interp import *\nopen_source('weather')", path=tmp_path)
    assert run.returncode != 0
    assert all(word in run.stderr for word in words), run.stderr
    spared = python(
        "from interp import *\nprint(len(load_items(open_source('facts'), n=4)))", path=tmp_path
    )
    assert spared.stdout.strip() == "4", spared.stderr


def test_the_error_tree_has_one_root() -> None:
    import interp.errors as errors

    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert all(issubclass(each, InterpError) for each in classes)


def test_items_of_every_listed_topic_load() -> None:
    assert len(load_items(open_source("facts"), n=16)) == 16
