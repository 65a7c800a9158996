import gc
import os
import signal
from collections import Counter

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

# Laws are tried on the same cases every time, on any machine, however busy it is.
settings.register_profile("fl_epe", derandomize=True, deadline=None, database=None, max_examples=30)
settings.load_profile("fl_epe")


# Files of few cases that take long. Workers begin with them: one at the end would keep all waiting.
BEGUN_FIRST = ("test_survival.py", "test_cli.py", "test_fuzz.py", "test_full_disk.py")


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist: as the hook below says
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config, items):
    """Under xdist: files that take long first, then those of many cases; their cases as written."""
    if hasattr(config, "workerinput"):
        cases = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.name not in BEGUN_FIRST, -cases[item.path]))


def pytest_collection_finish():
    """What is imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def signals_as_usual():
    """A shell starts what runs in the background with Ctrl-C ignored, and children inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


_drawn = {"wanted": False}


@pytest.fixture(autouse=True, scope="session")
def pictures_on_demand():
    """Reports have blank pictures, as real ones take seconds; a test with `pictures` draws them."""
    from fl_epe.reporting import page, report

    with pytest.MonkeyPatch.context() as patch:
        for module, name, blank in (
            (report, "render", b"\x89PNG"),
            (page, "still", "data:image/svg+xml,"),
        ):
            real = getattr(module, name)

            def drawn(what, real=real, blank=blank):
                return real(what) if _drawn["wanted"] else blank

            patch.setattr(module, name, drawn)
        yield


def _with_pictures():
    """Reports with their pictures."""
    _drawn["wanted"] = True
    yield
    _drawn["wanted"] = False


pictures = pytest.fixture(_with_pictures, name="pictures")
pictures_of_a_module = pytest.fixture(_with_pictures, name="pictures_of_a_module", scope="module")


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
