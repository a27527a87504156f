# SPDX-License-Identifier: Apache-2.0
"""Dense rates through cuBLASLt on random data, for the lower bounds: prints 'bf16 fp8' in TFLOP/s."""
import torch

n = 8192
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
qa = a.to(torch.float8_e4m3fn)
qb = b.to(torch.float8_e4m3fn)
one = torch.ones((), device="cuda")


def rate(f):
    times = []
    for i in range(15):
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        f()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return 2 * n**3 / sorted(times[3:])[6] / 1e9


bf16 = rate(lambda: a @ b.t())
fp8 = rate(lambda: torch._scaled_mm(qa, qb.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True))
print(f"{bf16:.0f} {fp8:.0f}")
