import ast
import gc
import os
import signal
import threading

import pytest
from flower_processes import Processes
from hypothesis import settings

# What these modules assert is shown with its values, as in a test.
pytest.register_assert_rewrite("every_schedule", "no_harm")

# Two workers on two cores: threads of one would wait for those of the other, and a product of two
# short vectors would take ten times as long. Set before NumPy is loaded, and for child processes.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Bits are compared: they are the same everywhere on CPUs. GPU tests name their device.
os.environ.setdefault("FL_EPE_DEVICE", "cpu")

gc.disable()  # until all is imported and collected: it would look at every module again and again

# Laws are tried on the same cases every time, on any machine, however busy it is.
settings.register_profile(
    "fl_epe", derandomize=True, deadline=None, database=None, max_examples=30
)
settings.load_profile("fl_epe")


def pytest_collection_modifyitems(config, items):
    """Under xdist the one test that takes long comes first: at the end it would keep all waiting.

    All others stay as written, so that a file is done by one worker, and what it shares made once.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.name != "test_fuzz.py")


def pytest_collection_finish():
    """What is imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True, scope="session")
def signals_as_usual():
    """A shell starts what runs in the background with Ctrl-C ignored, and children inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Files of tests need not outlive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def headers_of_arrays_are_read_one_at_a_time():
    """CPython 3.11 fails if two threads are at it, which a finalizer within the garbage collector
    is enough for: "AST constructor recursion depth mismatch", one in a thousand.
    """
    one_at_a_time, literal_eval = threading.RLock(), ast.literal_eval

    def alone(text):
        with one_at_a_time:
            return literal_eval(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "literal_eval", alone)
        yield


_drawn = {"wanted": False}


@pytest.fixture(autouse=True, scope="session")
def pictures_on_demand():
    """Reports have blank pictures, as real ones take seconds; a test with `pictures` draws them."""
    from fl_epe.reporting import report

    with pytest.MonkeyPatch.context() as patch:
        for name, blank in (
            ("picture", b"\x89PNG"),
            ("still", "data:image/svg+xml,"),
        ):
            real = getattr(report, name)

            def drawn(*what, real=real, blank=blank):
                return real(*what) if _drawn["wanted"] else blank

            patch.setattr(report, name, drawn)
        yield


def _with_pictures():
    """Reports with their pictures."""
    _drawn["wanted"] = True
    yield
    _drawn["wanted"] = False


pictures = pytest.fixture(_with_pictures, name="pictures")
pictures_of_a_module = pytest.fixture(
    _with_pictures, name="pictures_of_a_module", scope="module"
)


def _in_the_room_of_audits():
    return os.environ.get("PYTEST_CURRENT_TEST", "").startswith(
        "tests/auditing/"
    )


@pytest.fixture(autouse=True, scope="session")
def one_bound_of_the_same_scores():
    """Many reports are of the same scores: outside its own room a bound is computed once."""
    import numpy as np

    from fl_epe.auditing.bounds.methods import Bound

    real, known = Bound.__call__, {}

    def once(bound, observed, unobserved, delta, **options):
        if _in_the_room_of_audits():
            return real(bound, observed, unobserved, delta, **options)
        arrays = [
            np.asarray(group) for group in (observed, unobserved)
        ]  # None has its own type
        scores = [
            (a.dtype, a.shape, None if a.dtype == object else a.tobytes())
            for a in arrays
        ]
        key = (bound, *scores, delta, *sorted(options.items()))
        if key not in known:
            known[key] = real(bound, observed, unobserved, delta, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bound, "__call__", once)
        yield


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
