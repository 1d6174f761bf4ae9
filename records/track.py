"""What is logged, also in TensorBoard, wandb or trackio, whose packages are imported only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

Track = Callable[[Mapping[str, Any], int], None]  # (row of a log, steps that are finished)


def make_tracker(name: str, run: Path, options: dict[str, Any], step: int) -> Track:
    """The tracker of a run folder that goes on after `step` steps. ValueError when its package is missing."""
    if name == "none":
        return lambda row, step: None
    try:
        log = _tensorboard(run, step) if name == "tensorboard" else _client(name, run, options)
    except ImportError as error:
        raise ValueError(f"--track {name}: {error}; pip install {name}") from None
    return lambda row, step: log({k: float(v) for k, v in row.items() if isinstance(v, Real) and k != "step"}, step)


def _tensorboard(run: Path, step: int) -> Track:
    """Event files in the run folder. Points that a resumed run makes again are marked as void."""
    writer = import_module("torch.utils.tensorboard").SummaryWriter(
        str(run / "tensorboard"), purge_step=step and step + 1
    )

    def log(row: Mapping[str, float], step: int) -> None:
        for key, value in row.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return log


def _client(name: str, run: Path, options: dict[str, Any]) -> Track:
    """wandb and trackio have the same calls; wandb finds a run again by its id, trackio by its name."""
    module, again = import_module(name), {"id": run.name} if name == "wandb" else {}
    module.init(project="at-grpo", name=run.name, config=options, resume="allow", **again)
    return lambda row, step: module.log(dict(row), step=step)
