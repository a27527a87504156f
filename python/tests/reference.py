# SPDX-License-Identifier: Apache-2.0
"""Definitions in double precision, written from the formulas (docs/numerics.md) and not from the library."""
import itertools

import numpy as np


def bf16(bits):
    """The values of bfloat16 bits."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32).astype(np.float64)


def to_bf16(values):
    """Bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# Every code of a small float with its value: sign, exponent, mantissa by IEEE's rule.
def _table(exponent_bits, mantissa_bits, bias, nan):
    values = []
    for code in range(2 ** (1 + exponent_bits + mantissa_bits)):
        mantissa = code % 2**mantissa_bits
        exponent = code >> mantissa_bits & (2**exponent_bits - 1)
        sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
        if code & 0x7F == nan:
            values.append(np.nan)
        elif exponent == 0:
            values.append(sign * mantissa * 2.0 ** (1 - bias - mantissa_bits))
        else:
            values.append(sign * (1 + mantissa * 2.0**-mantissa_bits) * 2.0 ** (exponent - bias))
    return np.array(values)


E4M3 = _table(4, 3, 7, 0x7F)  # 448 is the largest; 0x7F and 0xFF are NaN
E2M1 = _table(2, 1, 1, None)  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
E8M0 = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan])


def every_mantissa():
    """All float32 of [1, 2): what holds for these holds for all others but those whose results are subnormal."""
    return (np.arange(2**23, dtype=np.uint32) + np.uint32(0x3f800000)).view(np.float32)


def nearest(table, values):
    """The code nearest to each value by looking at all of them: ties to the even code, past the end the largest."""
    finite = np.flatnonzero(np.isfinite(table))
    values = np.asarray(values, np.float64)
    distance = np.abs(values[..., None] - table[finite])
    # Of equal distances the even code; 0 and -0 differ by the sign of the value alone.
    order = np.lexsort((np.arange(len(finite)), finite % 2))
    best = finite[order[np.argmin(distance[..., order], axis=-1)]]
    half = len(table) // 2
    negative = np.signbit(values)
    return np.where(best % half == 0, np.where(negative, half, 0), best)


def unpack(codes):
    """Two four-bit codes of each byte, the low half first."""
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)


def block_values(w, format):
    """What codes and the scales of their blocks read as, [E, rows, cols]: without factors of rows and of whole matrices."""
    if format == "bf16":
        return bf16(w.codes)
    if format == "nvfp4":
        return E2M1[unpack(w.codes)] * E4M3[w.scales].repeat(16, 2)
    if format == "mxfp4":
        return E2M1[unpack(w.codes)] * E8M0[w.scales].repeat(32, 2)
    codes = E4M3[w.codes]
    if format == "mxfp8":
        return codes * E8M0[w.scales].repeat(32, 2)
    if format == "fp8_block":
        return codes * w.scales.astype(np.float64).repeat(128, 1).repeat(128, 2)
    return codes


def route_renormalize(logits, top_k):
    order = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(logits, order, 1).astype(np.float64)
    weights = np.exp(chosen - chosen.max(1, keepdims=True))
    return order, weights / weights.sum(1, keepdims=True)


def swiglu_moe(x, ids, weights, up, gate, down):
    """Output [T, H] and, for a bound, the same with every term's absolute value."""
    x = x.astype(np.float64)
    out, size = np.zeros((len(x), down.shape[1])), np.zeros((len(x), down.shape[1]))
    for t in range(len(x)):
        for e, w in zip(ids[t], weights[t]):
            if e < 0:
                continue
            u, g = up[e] @ x[t], gate[e] @ x[t]
            a = u * g / (1 + np.exp(-g))
            out[t] += w * (down[e] @ a)
            # |d silu(g) / dg| < 1.1: an error of either sum shows up at most by the other factor's size.
            slack = (np.abs(up[e]) @ np.abs(x[t])) * (np.abs(g) + 1) + 1.1 * (np.abs(gate[e]) @ np.abs(x[t])) * np.abs(u)
            size[t] += abs(w) * (np.abs(down[e]) @ (np.abs(a) + slack))
    return out, size


# --- Roundings of rows [R, C] to what their codes and scales read as (docs/numerics.md).


def _groups(y, size):
    return y.reshape(len(y), -1, size)


def round_e4m3(y):
    return E4M3[nearest(E4M3, y)]


def round_fp8_group(y, size=128):
    g = _groups(y, size)
    scale = np.maximum(np.abs(g).max(-1, keepdims=True) / 448, 1e-30)
    return (round_e4m3(g / scale) * scale).reshape(y.shape)


def round_mxfp8(y):
    g = _groups(y, 32)
    amax = np.maximum(np.abs(g).max(-1, keepdims=True), 1e-30)
    scale = 2.0 ** np.ceil(np.log2(amax / 448))
    return (round_e4m3(g / scale) * scale).reshape(y.shape)


def round_nvfp4(y, decode=1.0):
    g = _groups(y, 16)
    scale = round_e4m3(np.abs(g).max(-1, keepdims=True) / 6 / decode) * decode
    return (E2M1[nearest(E2M1, np.divide(g, scale, out=np.zeros_like(g), where=scale > 0))] * scale).reshape(y.shape)


def round_nvfp4_token(y):
    rows = [round_nvfp4(row[None], max(np.abs(row).max() / 2688, 1e-30)) for row in y]
    return np.concatenate(rows) if rows else y


def layer(x, ids, weights, up, gate, down, act, rounded, raw=lambda y: y, biases=None):
    """A fused layer [T, H] with its second inputs rounded by `rounded` and its first results by `raw`, and a bound of what
    float32 sums and the borders between codes may change: roundings of results a little larger and smaller are looked at.
    up, gate, down: [E, rows, columns]; gate None: not gated. biases: (up, gate, down) or None."""
    out = np.zeros((len(x), down.shape[1]))
    bound = np.zeros_like(out)
    for t in range(len(x)):
        for e, w in zip(ids[t], weights[t]):
            if e < 0:
                continue
            first = [m[e] @ x[t] + (biases[i][e] if biases else 0) for i, m in enumerate((up, gate)) if m is not None]
            sizes = [np.abs(m[e]) @ np.abs(x[t]) for m in (up, gate) if m is not None]
            tiny = 2.0**-19  # of float32 sums of some hundred products
            versions = []
            for signs in itertools.product((0, 1, -1), repeat=len(first)):
                y = act(*(raw((f + sign * tiny * s)[None])[0] for f, s, sign in zip(first, sizes, signs)))
                versions += [rounded((y * (1 + step * 2.0**-16))[None])[0] for step in (0, 1, -1)]
                if not any(signs):  # values and the largest of their block, which makes its scale, err each by itself
                    versions += [rounded((y * (1 + d))[None])[0] for d in _against_the_largest(y, 2.0**-16)]
            middle = versions[0]
            slack = np.max([np.abs(v - middle) for v in versions], 0)
            row = down[e] @ middle + (biases[2][e] if biases else 0)
            out[t] += w * row
            # bfloat16: the row, the router weight and the sum.
            bound[t] += abs(w) * (np.abs(down[e]) @ slack + 2.0**-7 * np.abs(row) + tiny * (np.abs(down[e]) @ np.abs(middle)))
    return out, bound + 2.0**-8 * np.abs(out) + 1e-30


def _against_the_largest(y, step):
    """Factors' distances from 1, in both signs: one for the largest value of each block of any size, the opposite for the others."""
    size = np.abs(y)
    for block in (16, 32, 128, len(y)):
        starts = np.arange(0, len(y), block)
        largest = size == np.maximum.reduceat(size, starts).repeat(np.diff([*starts, len(y)]))
        yield from (np.where(largest, step, -step), np.where(largest, -step, step))


def swiglu(up, gate, alpha=1.0, beta=0.0, limit=np.inf):
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (up + beta) * gate / (1 + np.exp(-alpha * gate))


def relu2(up):
    return np.maximum(up, 0) ** 2
