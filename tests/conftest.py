"""Each process computes on one thread: with `-n` there are several, and a run repeats its numbers to the digit."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # or the file with the fewest and longest tests would come last


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name != "test_torchrun.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except ValueError as error:  # a test that runs programs of agents, where bubblewrap does not work
        if not str(error).startswith("programs cannot run here"):
            raise
        pytest.skip(str(error))
