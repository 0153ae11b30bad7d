"""Steps of FixMatch with WRN-28-2 in PyTorch, compiled, on images that lie ready: no augmentation.

    python torch_fixmatch.py LABELLED UNLABELLED STEPS

Prints a JSON object: steps a second in TF32 and in bfloat16, and the version.
"""

import json
import sys
import time

import torch
from common import torch_device, torch_wait
from torch import nn

CLASSES = 10
WIDTHS = (32, 64, 128)
BLOCKS = 4  # of a width: depth 28
WARMUP = 3


class Block(nn.Module):
    """Two convolutions of 3x3 before which inputs are normalized, around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(before), nn.BatchNorm2d(after)])
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[n, c, h, w]."""
        hidden = nn.functional.leaky_relu(self.norms[0](inputs), 0.1)
        out = nn.functional.leaky_relu(self.norms[1](self.first(hidden)), 0.1)
        return self.second(out) + self.shortcut(inputs)


def network() -> nn.Module:
    """WRN-28-2."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    before = 16
    for place, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            layers.append(Block(before, width, 2 if place and not block else 1))
            before = width
    end = [nn.BatchNorm2d(before), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *end, nn.Linear(before, CLASSES))


def steps_per_second(labelled: int, unlabelled: int, steps: int, half: bool) -> float:
    """Time warm steps of SGD with momentum on both losses, from one forward pass."""
    device = torch_device()
    model = network().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, nesterov=True)
    images = torch.randn(labelled + 2 * unlabelled, 3, 32, 32, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, CLASSES, (labelled,), device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(images).float()
        known, weak, strong = logits.split([labelled, unlabelled, unlabelled])
        confidence, guessed = weak.detach().softmax(1).max(1)
        each = nn.functional.cross_entropy(strong, guessed, reduction="none")
        guess = (each * (confidence > 0.95)).mean()
        return nn.functional.cross_entropy(known, targets) + guess

    compiled = torch.compile(loss)
    for step in range(WARMUP + steps):
        if step == WARMUP:
            torch_wait()
            start = time.perf_counter()
        optimizer.zero_grad()
        compiled().backward()
        optimizer.step()
    torch_wait()
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Prints the rates."""
    sizes = [int(word) for word in sys.argv[1:]]
    rates = [steps_per_second(*sizes, half) for half in (False, True)]
    print(json.dumps({"float32": rates[0], "bf16": rates[1], "version": torch.__version__}))


main()
