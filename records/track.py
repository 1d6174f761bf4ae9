"""What is logged, also in TensorBoard or wandb, whose packages are imported only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any
from uuid import uuid4

Track = Callable[[Mapping[str, Any], int], None]  # (row of a log, steps that are finished)


def make_tracker(name: str, run: Path, options: dict[str, Any], step: int) -> Track:
    """The tracker of a run folder that goes on after `step` steps. ValueError when its package is missing."""
    if name == "none":
        return lambda row, step: None
    try:
        module = import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except ImportError as error:
        raise ValueError(f"--track {name}: {error}; pip install {name}") from None
    if name == "tensorboard":  # points that a resumed run makes again are marked as void
        writer = module.SummaryWriter(str(run / "tensorboard"), purge_step=step and step + 1)

        def log(row: dict[str, float], step: int) -> None:
            for key, value in row.items():
                writer.add_scalar(key, value, step)
            writer.flush()
    else:  # the name of a run may come twice, its id may not
        path = run / "wandb_id"
        if not step or not path.exists():
            path.write_text(uuid4().hex)
        module.init(project="at-grpo", name=run.name, id=path.read_text(), config=options, resume="allow")

        def log(row: dict[str, float], step: int) -> None:
            module.log(row, step=step)

    return lambda row, step: log({k: float(v) for k, v in row.items() if isinstance(v, Real) and k != "step"}, step)
