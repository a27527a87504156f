#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fused MoE as a PyTorch user writes it, on the first five shapes of bench/moe_shapes.cc: sort by expert, gather,
grouped GEMM, activation, (row-wise FP8 rounding,) grouped GEMM, weighted sum. Timed as bench/moe_sm90.cc does: one CUDA
graph of several calls, each with its own routing and in turn another copy of the weights; median of the replays. Prints
one line per cell."""
import argparse
import torch
import torch.nn.functional as F

SHAPES = {  # hidden, inter, experts, local, top k, gated
    "qwen3-30b-a3b": (2048, 768, 128, 128, 8, True),
    "deepseek-v3-tp8": (7168, 256, 256, 256, 8, True),
    "deepseek-v3-ep8": (7168, 2048, 256, 32, 8, True),
    "nemotron-3-nano": (2688, 1856, 128, 128, 6, False),
    "nemotron-3-super": (1024, 2688, 512, 512, 22, False),
}
FP8 = torch.float8_e4m3fn


def rows_to_fp8(x):
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / 448
    return (x.float() / scale).to(FP8), scale.squeeze(1)


def activate(h, inter, gated):
    return F.silu(h[:, :inter]) * h[:, inter:] if gated else F.relu(h).square()


class Layer:
    """Weights [experts, in, out], the layout that the grouped GEMMs want: in is contiguous."""

    def __init__(self, hidden, inter, experts, gated, fp8):
        self.inter, self.gated, self.fp8, self.experts = inter, gated, fp8, experts

        def weight(k, n):
            w = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16) / k**0.5
            return (w.to(FP8) if fp8 else w).transpose(1, 2)

        self.up, self.down = weight(hidden, inter * (2 if gated else 1)), weight(inter, hidden)
        if fp8:
            self.up_scale = torch.ones(experts, self.up.shape[2], device="cuda")
            self.down_scale = torch.ones(experts, hidden, device="cuda")

    def bytes(self):
        return sum(w.numel() * w.element_size() for w in (self.up, self.down))

    def grouped(self, x, w, w_scale, offsets):
        if not self.fp8:
            return torch._grouped_mm(x, w, offs=offsets)
        codes, scale = rows_to_fp8(x)
        return torch._scaled_grouped_mm(codes, w, scale, w_scale, offs=offsets, out_dtype=torch.bfloat16, use_fast_accum=True)

    def __call__(self, x, ids, weights):
        tokens, top_k = ids.shape
        order = torch.argsort(ids.flatten(), stable=True)  # experts of other ranks have ids from `experts` on
        ranks = torch.searchsorted(ids.flatten()[order].contiguous(), torch.arange(self.experts, device="cuda"), right=True)
        offsets = ranks.to(torch.int32)
        token = order // top_k
        h = self.grouped(x[token], self.up, getattr(self, "up_scale", None), offsets)
        h = self.grouped(activate(h, self.inter, self.gated), self.down, getattr(self, "down_scale", None), offsets)
        w = torch.where(ids < self.experts, weights, 0).flatten()[order].unsqueeze(1)
        h = torch.where(w == 0, 0.0, h.float() * w)  # rows of no local expert are not written
        return torch.zeros(tokens, x.shape[1], device="cuda").index_add_(0, token, h).to(torch.bfloat16)


def cell(layers, shape, tokens, replays):
    hidden, _, experts, _, top_k, _ = shape
    calls = 12 if tokens <= 32 else 8 if tokens <= 128 else 4 if tokens <= 2048 else 2
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    routes = []
    for _ in range(calls):
        top, ids = torch.randn(tokens, experts, device="cuda").topk(top_k)
        routes.append((ids.to(torch.int32), top.softmax(1)))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(2):
            layers[i % len(layers)](x, *routes[i])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i, r in enumerate(routes):
                layers[i % len(layers)](x, *r)
        times = []
        for i in range(replays + 2):
            start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1000 / calls)
    return sorted(times[2:])[replays // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", default="1,8,32,128,512,2048,8192")
    parser.add_argument("--replays", type=int, default=20)
    args = parser.parse_args()
    for name in args.shapes.split(","):
        hidden, inter, experts, local, top_k, gated = SHAPES[name]
        for fp8 in (False, True):
            layers = [Layer(hidden, inter, local, gated, fp8)]
            while sum(layer.bytes() for layer in layers) < 2.4e9:
                layers.append(Layer(hidden, inter, local, gated, fp8))
            for tokens in map(int, args.tokens.split(",")):
                kind = "fp8row" if fp8 else "bf16"
                try:
                    print(f"{name} torch-{kind} T={tokens} {cell(layers, SHAPES[name], tokens, args.replays):.1f} us", flush=True)
                except (RuntimeError, torch.OutOfMemoryError) as e:
                    print(f"{name} torch-{kind} T={tokens} failed: {str(e).splitlines()[0][:100]}", flush=True)
            del layers
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
