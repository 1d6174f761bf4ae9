"""One policy over several ranks: FSDP2, applied to the model from outside.

Every rank keeps a slice of the float32 weights, gradients and optimizer state. A layer's weights are gathered (on a GPU
in bfloat16) just before use and dropped after it.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

# Parameters gathered at once, roughly: 134 MB of bfloat16. Many small gathers take longer than a large one, which takes
# memory. From Qwen3-1.7B on, each layer is a unit.
UNIT = 2**26


def shard(root: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh) -> None:
    """Shard `root` in place, through which every forward enters: layers in units, then the rest (embedding, head)."""
    dtype = torch.bfloat16 if mesh.device_type == "cuda" else None
    precision = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)  # of ids and float32 log-probs
    together = max(1, round(UNIT / sum(weight.numel() for weight in layers[0].parameters())))
    for first in range(0, len(layers), together):
        fully_shard(list(layers[first : first + together]), mesh=mesh, mp_policy=precision)
    fully_shard(root, mesh=mesh, mp_policy=precision, reshard_after_forward=False)


def full(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The whole of a tensor of which each rank may hold a part. All ranks of the policy call it."""
    if isinstance(tensor, DTensor) and tensor.device_mesh.size() == 1:
        tensor = tensor.to_local()  # a rank that is alone holds all of it: no 0.2 ms for each weight
    tensor = tensor.to(dtype or tensor.dtype)  # before it travels
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over(mesh: DeviceMesh | None, values: dict[str, float]) -> dict[str, float]:
    """The sum of each value over the ranks of a policy."""
    if mesh is None or mesh.size() == 1:
        return values
    numbers = torch.tensor(list(values.values()), dtype=torch.float64)
    dist.all_reduce(numbers, group=mesh.get_group())
    return dict(zip(values, numbers.tolist(), strict=True))
