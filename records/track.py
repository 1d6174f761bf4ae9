"""The logs in TensorBoard or wandb too, imported only when asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any
from uuid import uuid4

Track = Callable[[Mapping[str, Any], int], None]  # (row of a log, steps that are finished)


def make_tracker(name: str, run: Path, options: dict[str, Any], step: int) -> Track:
    """For a run that goes on after `step` steps. ValueError when the package is missing."""
    if name == "none":
        return lambda row, step: None
    try:
        module = import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except ImportError as error:
        raise ValueError(f"--track {name}: {error}; pip install {name}") from None
    if name == "tensorboard":  # points that a resumed run makes again are marked as void
        writer = module.SummaryWriter(str(run / "tensorboard"), purge_step=step and step + 1)

        def log(row: Mapping[str, Any], step: int) -> None:
            for key, value in numbers(row).items():
                writer.add_scalar(key, value, step)
            writer.flush()

        return log
    path = run / "wandb_id"  # the name of a run may come twice, its id may not
    if not step or not path.exists():
        path.write_text(uuid4().hex)
    module.init(project="at-grpo", name=run.name, id=path.read_text(), config=options, resume="allow")
    return lambda row, step: module.log(numbers(row), step=step)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if isinstance(value, Real) and name != "step"}
