"""From main memory to a device without waiting for it, so that a batch is queued as a whole while the device works."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; what comes from main memory goes to a GPU by way of pinned memory, and nobody waits.

    From pageable memory a copy to a GPU waits until all that was queued before it is done.
    """
    if tensor.device.type == "cpu" and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Shared:
    """A tensor in main memory that the layers of a model need on their devices: copied once to each device.

    >>> shared = Shared(torch.arange(3))
    >>> shared.on(torch.device("cpu")) is shared.on(torch.device("cpu"))
    True
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._copies = {tensor.device: tensor}

    def on(self, device: torch.device) -> Tensor:
        """Its copy on a device."""
        if device not in self._copies:
            self._copies[device] = to_device(self.tensor, device)
        return self._copies[device]
