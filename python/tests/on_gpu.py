# SPDX-License-Identifier: Apache-2.0
"""sluice_moe.flashinfer on a GPU for tests that hold numpy arrays: each call's arrays go there as torch's tensors, and what
it wrote and gave comes back."""
import enum
import functools

import numpy as np

import sluice_moe.flashinfer


def to_torch(x, device="cpu"):
    """An array as torch has it, transposed views as such; bits of bfloat16 as bfloat16."""
    import torch
    if x.dtype == np.uint16:
        return torch.from_numpy(x.view(np.int16).copy("K")).view(torch.bfloat16).to(device)
    return torch.from_numpy(x.copy("K")).to(device)


def to_numpy(t):
    """bfloat16 and float8 as their bits."""
    import torch
    t = t.detach().cpu()
    if t.dtype == torch.bfloat16:
        return t.view(torch.int16).numpy().view(np.uint16)
    return t.view(torch.uint8).numpy() if t.dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu) else t.numpy()


def _call(function, *arguments, **named):
    given = []

    def there(x):
        if isinstance(x, (list, tuple)):
            return type(x)(there(v) for v in x)
        if not isinstance(x, np.ndarray):
            return x
        given.append((x, to_torch(x, "cuda")))
        return given[-1][1]

    def back(x):
        if isinstance(x, (list, tuple)):
            return type(x)(back(v) for v in x)
        for array, tensor in given:
            if x is tensor:
                return array
        return to_numpy(x)

    result = function(*there(arguments), **{name: there(value) for name, value in named.items()})
    for array, tensor in given:
        array[...] = to_numpy(tensor)
    return back(result)


class _OnGpu:
    def __getattr__(self, name):
        found = getattr(sluice_moe.flashinfer, name)
        if isinstance(found, enum.EnumMeta):
            return found
        return functools.wraps(found)(functools.partial(_call, found))


flashinfer = _OnGpu()
