"""Other systems: what they lack is simulated, text files state their encoding, and nothing that
decides results is left to code that NumPy or BLAS chooses by the processor.
"""

import ast
import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import isfed
from isfed.base import atomic_files
from isfed.simulate.kernel_run import num_cores

SOURCES = sorted(Path(isfed.__file__).parent.rglob("*.py"))
TEXT = {"read_text": 0, "write_text": 1}  # and how many positional arguments come before encoding


def lacks_encoding(call: ast.Call) -> bool:
    """Whether a call opens text in the encoding of the system, which differs on Windows."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if any(word.arg == "encoding" for word in call.keywords):
        return False
    if name in TEXT:
        return len(call.args) <= TEXT[name]
    if name != "open" or not isinstance(call.func, ast.Name):
        return False
    mode = call.args[1] if len(call.args) > 1 else ast.Constant("r")
    return isinstance(mode, ast.Constant) and "b" not in str(mode.value)


def test_the_scan_sees_what_it_should():
    found = ast.parse("p.read_text(); p.write_text('x'); open('x'); open('x', 'a')")
    fine = ast.parse("p.read_text(encoding='utf-8'); open('x', 'rb'); zip.open('x')")
    calls = [[n for n in ast.walk(tree) if isinstance(n, ast.Call)] for tree in (found, fine)]
    assert [sum(map(lacks_encoding, group)) for group in calls] == [4, 0]


def test_text_files_state_their_encoding():
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and lacks_encoding(node)
    ]
    assert wrong == []


# Rooms in which data are made, agents drawn and steps taken.
DECIDING = ("methods", "base", "federation", "flower", "problems", "sampling", "simulate")
ALSO = ("datasets/partition.py",)
# NumPy's code of these depends on the processor, and so may the last bits.
FUNCTIONS = re.compile(
    r"(np|special)\.(exp2?|expm1|log|log2|log10|log1p|cbrt|(arc)?(sin|cos|tan)h?|arctan2|hypot|"
    r"(float_)?power|logaddexp2?|expit|logsumexp|softmax|(arg)?partition)|expit|logsumexp|softmax"
)
# The order of these sums is BLAS's, or depends on the width of the processor's registers.
SUMS = re.compile(
    r"np\.(v?dot|matmul|inner|tensordot|einsum|cov|corrcoef|convolve|correlate)|"
    r"(np\.|sp\.|scipy\.)?linalg\.\w+|.+\.dot"
)
COMPILERS = {"compiled", "called", "inlined", "allocating"}
# By file, or by file and function; each with the reason why no draw, datum or step hangs on it.
ALLOWED = {
    "base/gram_matrix.py": "sums for the theory and the optimum, compared to a tolerance",
    "problems/optimum.py": "w^o, compared to a tolerance",
    "problems/scaled_risk.py": "w^o, compared to a tolerance",
    "problems/losses.py": "values and derivatives for risks that are shown and for w^o",
    "problems/problem.py:risks": "shown",
    "simulate/run_history.py:decibels": "shown",
    "simulate/run_history.py:stderr_db": "shown",
    "methods/cooperative_sgd.py:check_mixing": "refuses a matrix, to a tolerance",
    "methods/fedasync.py:weight": "Python's own numbers, whose power is the system's",
    "sampling/estimation.py": "shown",
    "sampling/skewness.py": "the same",
    "sampling/designs/rejective.py:_spectrum": "joint probabilities: no draw uses them",
    "sampling/designs/rejective.py:rejective_joint": "the same",
    "sampling/designs/rejective.py:_open_joint": "the same",
    "sampling/designs/cube.py:_balanced_joint": "the same",
    "sampling/designs/cube.py:_imbalance": "a variance: no draw uses it",
    "sampling/designs/outcomes.py": "whole numbers: how many samples there are",
}


def depends_on_the_processor(node: ast.AST, *, compiled: bool) -> bool:
    """Whether NumPy, SciPy or BLAS may give other bits here on another processor.

    In compiled code functions of numbers are the system's, and only sums of arrays are BLAS's.
    """
    if isinstance(node, ast.BinOp | ast.AugAssign):
        exponent = node.right if isinstance(node, ast.BinOp) else node.value
        plain = isinstance(exponent, ast.Constant) and exponent.value == 2  # a product
        base = node.left if isinstance(node, ast.BinOp) else node.target
        power = isinstance(node.op, ast.Pow) and not (plain or isinstance(base, ast.Constant))
        return isinstance(node.op, ast.MatMult) or (power and not compiled)
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    if called.endswith("argsort") and not compiled:
        return "kind='stable'" not in map(ast.unparse, node.keywords)
    return bool(SUMS.fullmatch(called) or (not compiled and FUNCTIONS.fullmatch(called)))


def places(tree: ast.AST, function: str = "", compiled: bool = False) -> Iterator[tuple[str, int]]:
    """The function and the line of everything in a file that depends on the processor."""
    for node in ast.iter_child_nodes(tree):
        if depends_on_the_processor(node, compiled=compiled):
            yield function, node.lineno  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            yield from places(node, node.name, compiled or bool(marks & COMPILERS))
        else:
            yield from places(node, function, compiled)


def test_the_scan_sees_what_depends_on_the_processor():
    found = (
        "a @ b; a @= b; np.exp(a); np.linalg.norm(a); a.dot(b); np.argsort(a); a.argsort();"
        "np.argpartition(a, 2); a ** b; a **= 3; expit(a); np.einsum('i,i', a, a); np.power(a, 2)"
    )
    fine = "a * b; math.exp(a); norm(a); np.argsort(a, kind='stable'); a ** 2; 2**31; exp(a)"
    in_compiled = "@compiled\ndef f(a):\n    np.exp(a) ** a + a @ a"
    assert len(list(places(ast.parse(found)))) == len(found.split(";"))
    assert list(places(ast.parse(fine))) == []
    assert len(list(places(ast.parse(in_compiled)))) == 1


def test_nothing_that_decides_results_depends_on_the_processor():
    root, wrong, used = Path(isfed.__file__).parent, [], set()
    for path in SOURCES:
        name = path.relative_to(root).as_posix()
        if not (name.startswith(DECIDING) or name in ALSO):
            continue
        for function, line in places(ast.parse(path.read_bytes())):
            reasons = {name, f"{name}:{function}"} & ALLOWED.keys()
            used |= reasons
            wrong += [] if reasons else [f"{name}:{line} in {function}"]
    assert wrong == [], (
        "use isfed.base.portable_arithmetic, or say in ALLOWED why it decides nothing"
    )
    assert used == ALLOWED.keys()


def test_cores_are_counted_where_affinity_is_unknown(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert num_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_cores() == 1


@pytest.fixture
def windows(monkeypatch):
    """The locks of Windows, kept in a dictionary; `fcntl` cannot be imported."""
    locked: dict[int, int] = {}  # inode to descriptor

    def locking(descriptor: int, mode: int, count: int) -> None:
        node = os.fstat(descriptor).st_ino
        assert mode == 2
        assert count == 1
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0
        try:
            holder = locked.get(node, descriptor)
            alive = holder != descriptor and os.fstat(holder).st_ino == node
        except OSError:
            alive = False  # closed meanwhile, which releases the lock
        if alive:
            raise PermissionError(errno.EACCES, "Permission denied")
        locked[node] = descriptor

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(atomic_files, "WINDOWS", True)
    monkeypatch.setattr(atomic_files, "PATIENCE", (0.0, 0.0))


def hold_twice(path: Path) -> None:
    with atomic_files.lock_file(path), pytest.raises(BlockingIOError):
        atomic_files.lock_file(path)
    atomic_files.lock_file(path).close()  # free again


def test_a_lock_is_exclusive(tmp_path):
    hold_twice(tmp_path / "folder" / "lock")


def test_a_lock_is_exclusive_on_windows(tmp_path, windows):
    hold_twice(tmp_path / "folder" / "lock")


def test_two_runs_do_not_share_a_folder_on_windows(tmp_path, windows):
    from isfed.studies.results_folder import StoreError, locked

    busy = pytest.raises(StoreError, match="another run is writing")
    with locked(tmp_path), busy, locked(tmp_path):
        pass


def busy(times: int, monkeypatch) -> list[str]:
    """os.replace refuses that often, as Windows does while somebody reads the file."""
    real, tries = os.replace, []

    def replace(old, new):
        tries.append(str(new))
        if len(tries) <= times:
            raise PermissionError(errno.EACCES, "Access is denied")
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    return tries


def test_a_file_that_is_being_read_is_replaced_later_on_windows(tmp_path, monkeypatch, windows):
    tries = busy(2, monkeypatch)
    atomic_files.write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert len(tries) == 3


def test_a_file_that_stays_busy_is_an_error_and_leaves_nothing_behind(
    tmp_path, monkeypatch, windows
):
    (tmp_path / "a").write_bytes(b"old")
    busy(99, monkeypatch)
    with pytest.raises(PermissionError):
        atomic_files.write_whole(tmp_path / "a", b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_elsewhere_a_refusal_is_final(tmp_path, monkeypatch):
    tries = busy(1, monkeypatch)
    with pytest.raises(PermissionError):
        atomic_files.write_whole(tmp_path / "a", b"new")
    assert len(tries) == 1


def test_an_agent_keeps_its_files_where_there_are_no_users_and_modes(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from isfed.flower.agent_state import private_folder

    monkeypatch.delattr(os, "getuid", raising=False)
    tmp_path.chmod(0o755)
    (tmp_path / "diary.txt").write_text("", encoding="utf-8")
    assert private_folder(tmp_path) == tmp_path


def test_the_demo_says_that_it_does_not_run_on_windows(monkeypatch):
    pytest.importorskip("flwr")
    from isfed.flower import demo

    monkeypatch.delattr(os, "killpg", raising=False)
    with pytest.raises(demo.FederationError, match="Windows Subsystem for Linux"):
        demo.run_demo(agents=2, rounds=1, active=1, seed=0, say=print)


def test_signals_that_are_missing_are_left_out(monkeypatch):
    pytest.importorskip("flwr")
    from isfed.flower.demo import terminable

    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    with terminable(), pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)
