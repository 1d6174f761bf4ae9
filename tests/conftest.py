"""With `-n`, tests run in several processes at once, and each of them computes on one thread."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
