"""Compiled code on disk: what a change compiles anew, and what becomes of damaged files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from numba.core import config as numba_config
from numba.core.caching import NullCache
from numba.core.registry import CPUDispatcher

import isfed
from isfed.base import compile_cache
from isfed.base.progress import _TIMER, doing, seconds_compiling

PACKAGE = Path(isfed.__file__).parent
MODULE = """
from isfed.base.jit import compiled

@compiled
def double(x):
    return {factor} * x
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load the module as a new process would, with a cache folder of its own."""
    monkeypatch.setattr(numba_config, "CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "doubling.py"

    def load(factor: int = 2, source: str = ""):
        file.write_text(source or MODULE.format(factor=factor))
        for cached in (compile_cache.folder_of, compile_cache._text, compile_cache._imports):
            cached.cache_clear()
        spec = importlib.util.spec_from_file_location("doubling", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module if source else module.double

    return load


def _hits(function) -> int:
    """How often the function came from the cache."""
    return sum(function.stats.cache_hits.values())


def test_compiled_code_is_found_again_and_a_change_is_seen(load):
    first, second = load(), load()
    assert first(4) == second(4) == 8
    assert (_hits(first), _hits(second)) == (0, 1)
    changed = load(3)
    assert changed(4) == 12
    assert _hits(changed) == 0


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _empty(content: bytes) -> bytes:
    return b""


def _zeroed(content: bytes) -> bytes:
    """As after a power failure: the right length, and zeros where the data did not arrive."""
    middle = len(content) // 2
    return content[:middle] + bytes(200) + content[middle + 200 :]


@pytest.mark.parametrize("damage", [_cut, _empty, _zeroed])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_files_are_compiled_again(load, tmp_path, damage, ending):
    assert load()(4) == 8
    files = list((tmp_path / "cache").rglob(f"*.{ending}"))
    assert files
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    again = load()
    assert again(4) == 8
    assert _hits(again) == 0
    mended = load()
    assert mended(4) == 8
    assert _hits(mended) == 1


def test_a_cache_that_cannot_be_written_is_said_once(load, tmp_path):
    function = load()
    folder = Path(function._cache.cache_path)
    folder.rmdir()
    folder.write_text("in the way")
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        assert function(4) == 8


@pytest.mark.parametrize("kept", [True, False])
def test_compiling_is_announced_and_timed(load, monkeypatch, kept):
    said = []
    start = _TIMER.on_start

    def on_start(event):
        start(event)
        said.append(doing())

    monkeypatch.setattr(_TIMER, "on_start", on_start)
    before, function = seconds_compiling(), load(6)
    if not kept:
        function._cache = NullCache()
    function(np.ones(3))
    # Only what goes to a file is compiled once.
    assert set(said) == {"compiling, once per installation" if kept else "compiling"}
    if not kept:
        return
    after = seconds_compiling()
    assert after > before
    load(6)(np.ones(3))  # from the cache
    assert seconds_compiling() == after


PARTS = """
from isfed.base.jit import jit_alloc, jit_call, compiled, jit_inline
import numpy as np

@jit_inline
def square(x):
    return x * x

@jit_call
def cube(x):
    return x * square(x)

@jit_alloc
def room(count):
    return np.zeros(count)

@compiled
def cubes(x):
    out = room(x.size)
    for i in range(x.size):
        out[i] = cube(x[i]) + square(1) - 1.0
    return out
"""


def test_parts_are_compiled_into_what_python_calls_and_alone_if_python_calls_them(load):
    module = load(source=PARTS)
    x = np.arange(5.0)
    np.testing.assert_array_equal(module.cubes(x), x**3)
    assert [str(kinds) for kinds in module.cube.overloads] == ["(float64,)"]
    assert [str(kinds) for kinds in module.square.overloads] == ["(float64,)", "(int64,)"]
    assert module.cube(3.0) == 27.0
    assert module.cube(3) == 27
    np.testing.assert_array_equal(module.room(2), [0.0, 0.0])
    again = load(source=PARTS)
    np.testing.assert_array_equal(again.cubes(x), x**3)
    assert _hits(again.cubes) == 1
    assert not again.cube.overloads  # what is in the cache is whole


def _dispatchers(module):
    return {n: f for n, f in vars(module).items() if isinstance(f, CPUDispatcher)}


def _files_called(function) -> set[Path]:
    """The files of the compiled functions that a compiled function names."""
    found = set()
    code, known = function.py_func.__code__, function.py_func.__globals__
    for name in code.co_names:
        value = known.get(name)
        if isinstance(value, CPUDispatcher):
            found.add(Path(value.py_func.__code__.co_filename))
        elif isinstance(value, types.ModuleType):
            parts = [f for n, f in _dispatchers(value).items() if n in code.co_names]
            found |= {Path(part.py_func.__code__.co_filename) for part in parts}
    return found


def test_a_key_covers_every_file_that_is_compiled_in():
    files = [f for f in PACKAGE.rglob("*.py") if compile_cache._MARK in f.read_text()]
    assert len(files) > 15
    if importlib.util.find_spec("torch") is None:
        files = [f for f in files if f.parent != PACKAGE / "torch"]
    for file in files:
        name = ".".join(("isfed", *file.relative_to(PACKAGE).with_suffix("").parts))
        module = importlib.import_module(name)
        assert _dispatchers(module), name
        for function in _dispatchers(module).values():
            origin = Path(function.py_func.__code__.co_filename)
            assert _files_called(function) <= compile_cache.sources_of(origin), (name, function)


def test_a_key_covers_no_more_than_it_must():
    gradients = compile_cache.sources_of(PACKAGE / "problems" / "compiled_losses.py")
    kernel = compile_cache.sources_of(PACKAGE / "simulate" / "kernel.py")
    assert gradients < kernel
    assert PACKAGE / "base" / "jit.py" in gradients
    assert PACKAGE / "sampling" / "score_table.py" in kernel - gradients
    assert (
        PACKAGE / "base" / "argument_checks.py" not in kernel
    )  # plain functions: nothing to compile in


def test_import_works_where_no_home_can_be_determined(tmp_path):
    code = """
import pathlib, pwd

def unknown(uid):
    raise KeyError(uid)

pwd.getpwuid = unknown
try:
    pathlib.Path.home()
except RuntimeError:
    pass
else:
    raise SystemExit("a home was found after all")
import isfed
from isfed.base.random_streams import Stream
print(Stream(1).uniforms(2) >= 0)
"""
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[ True  True]"


def test_the_security_policy_names_every_place_that_is_unpickled(monkeypatch):
    policy = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert "These files are unpickled" in policy
    monkeypatch.setattr(compile_cache._CONFIG, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    places = [place.name for place in compile_cache._parents()]
    assert places == ["__pycache__", "isfed"]
    for named in ("NUMBA_CACHE_DIR", "`__pycache__`", "`isfed` in `$XDG_CACHE_HOME`"):
        assert named in policy
