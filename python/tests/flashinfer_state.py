# SPDX-License-Identifier: Apache-2.0
"""What FlashInfer's test files set for their whole process: flashinfer_upstream.py runs the cases of all of them in one."""
import os
import random
import sys


def _environment(values):
    for name in set(os.environ) - set(values):
        del os.environ[name]
    os.environ.update(values)


def _settings():
    """(get, set) of each."""
    import torch
    import torch.utils._device as default
    device = (lambda: default.CURRENT_DEVICE, torch.set_default_device)  # None: never set
    flags = [(lambda m=module, n=name: getattr(m, n), lambda value, m=module, n=name: setattr(m, n, value))
             for module, name in ((torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark"))]
    return [device, (torch.get_default_dtype, torch.set_default_dtype), (torch.is_grad_enabled, torch.set_grad_enabled),
            (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
            (lambda: dict(os.environ), _environment), *flags]


def read():
    return [get() for get, _ in _settings()]


def restore(values, seed):
    """Sets what differs, and every generator of random numbers, so that a case alone draws what it drew among the others."""
    import torch
    for (get, put), value in zip(_settings(), values):
        if get() != value:
            put(value)
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy
        numpy.random.seed(seed)
