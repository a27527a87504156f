# SPDX-License-Identifier: Apache-2.0
"""`sluice moe run` from outside: cases written with the standard library alone, every rounding point recomputed from the one before.

Nothing of Sluice is used but the program: element formats are tables made from their definitions, quantisers round each float32 step.

usage: moe_run_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
SEED = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(2**32))
FLT_MAX, FLT_MIN = (2 - 2**-23) * 2.0**127, 2.0**-126


def f32(x):
    return math.copysign(math.inf, x) if abs(x) > FLT_MAX else struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


E4M3 = [m * 2.0**-9 if e == 0 else (8 + m) * 2.0**(e - 10) for e in range(16) for m in range(8)][:127]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def nearest(values, x):
    """The value nearest to x, the even code at a tie, the last one beyond the end."""
    a = abs(x)
    best = min(range(len(values)), key=lambda i: (abs(values[i] - a), i % 2)) if a < values[-1] else len(values) - 1
    return math.copysign(values[best], x)


def e4m3(x):
    return nearest(E4M3, x)


def power_at_least(x):
    return 0.0 if x <= 2.0**-127 else 2.0**math.ceil(math.log2(x))


# --- Weights: codes and scales drawn at random, and what they read as ----------------------------------------------

# weights: (dtype in the file, bytes of a code, group of rows, group of columns, dtype of the scales)
FORMATS = {
    "bf16": ("BF16", None), "fp8_tensor": ("F8_E4M3", "tensor"), "fp8_channel": ("F8_E4M3", "channel"),
    "fp8_block": ("F8_E4M3", "block"), "mxfp8": ("F8_E4M3", "e8m0"), "mxfp4": ("U8", "e8m0"), "nvfp4": ("U8", "e4m3"),
}
INPUTS = {
    "bf16": ["plain"], "fp8_tensor": ["plain", "fp8_static", "fp8_token"], "fp8_channel": ["fp8_static", "fp8_token"],
    "fp8_block": ["plain", "fp8_group"], "mxfp8": ["plain", "mxfp8"], "mxfp4": ["plain", "mxfp8"],
    "nvfp4": ["plain", "nvfp4", "nvfp4_token"],
}


class Matrix:
    """[rows, cols] of one expert: raw codes, scales as written, values."""

    def __init__(self, rng, form, rows, cols):
        self.rows, self.cols = rows, cols
        dtype, kind = FORMATS[form]
        self.scale_2 = [f32(rng.uniform(0.5, 1.5) / 64)] if form == "nvfp4" else []
        if form == "bf16":
            self.values = [[bf16(rng.gauss(0, 0.1)) for _ in range(cols)] for _ in range(rows)]
            self.codes = [b"".join(struct.pack("<f", v)[2:] for v in row) for row in self.values]
            self.scales = []
            return
        if dtype == "U8":
            codes = [[rng.randrange(16) for _ in range(cols)] for _ in range(rows)]
            plain = [[E2M1[c & 7] * (-1 if c & 8 else 1) for c in row] for row in codes]
            self.codes = [bytes(row[i] | row[i + 1] << 4 for i in range(0, cols, 2)) for row in codes]
        else:
            codes = [[rng.randrange(0x50) | rng.choice([0, 0x80]) for _ in range(cols)] for _ in range(rows)]
            plain = [[E4M3[c & 127] * (-1 if c & 128 else 1) for c in row] for row in codes]
            self.codes = [bytes(row) for row in codes]
        high, wide = {"tensor": (rows, cols), "channel": (1, cols), "block": (128, 128), "e8m0": (1, 32), "e4m3": (1, 16)}[kind]
        down, across = -(-rows // high), -(-cols // wide)
        if kind == "e8m0":
            codes = [[rng.randrange(118, 123) for _ in range(across)] for _ in range(down)]
            scale, self.scales = [[2.0**(c - 127) for c in row] for row in codes], [bytes(row) for row in codes]
        elif kind == "e4m3":
            codes = [[rng.randrange(0x20, 0x48) for _ in range(across)] for _ in range(down)]
            scale, self.scales = [[E4M3[c] for c in row] for row in codes], [bytes(row) for row in codes]
        else:
            scale = [[f32(rng.uniform(0.01, 0.05)) for _ in range(across)] for _ in range(down)]
            self.scales = [struct.pack(f"<{across}f", *row) for row in scale]
        factor = self.scale_2[0] if self.scale_2 else 1
        self.values = [[plain[r][c] * scale[r // high][c // wide] * factor for c in range(cols)] for r in range(rows)]


def ordered(order, gate, up):
    """Rows of a merged matrix from those of its halves."""
    if order == "interleaved":
        return [row for pair in zip(gate, up) for row in pair]
    return gate + up if order == "gate_up" else up + gate


# --- Inputs: one row to what it reads as ----------------------------------------------------------------------------

def rounded(inputs, row, static):
    if inputs == "fp8_static":
        return [e4m3(f32(v * f32(1 / static))) * static for v in row]
    if inputs == "fp8_token":
        s = max(f32(max(map(abs, row)) / 448), FLT_MIN)
        return [e4m3(f32(v / s)) * s for v in row]
    if inputs in ("fp8_group", "mxfp8"):
        out, size = [], 128 if inputs == "fp8_group" else 32
        for i in range(0, len(row), size):
            part = row[i:i + size]
            amax = max(map(abs, part))
            s = max(f32(amax / 448), FLT_MIN) if inputs == "fp8_group" else power_at_least(f32(amax * f32(1 / 448)))
            out += [e4m3(f32(v / s)) * s if s else 0.0 for v in part]
        return out
    if inputs in ("nvfp4", "nvfp4_token"):
        amax = max(map(abs, row))
        encode = f32(1 / static) if inputs == "nvfp4" else (min(f32(2688 / amax), FLT_MAX) if amax else FLT_MAX)
        decode = f32(1 / encode)
        out = []
        for i in range(0, len(row), 16):
            part = row[i:i + 16]
            s = e4m3(f32(max(map(abs, part)) * f32(encode * f32(1 / 6))))
            inverse = min(f32(1 / f32(s * decode)), FLT_MAX) if s else FLT_MAX
            out += [nearest(E2M1, f32(v * inverse)) * s * (static if inputs == "nvfp4" else decode) if s else 0.0 for v in part]
        return out
    return row


class MoeRun(unittest.TestCase):
    T, E, K, H, I = 3, 4, 2, 96, 64
    OFFSET, GLOBAL = 1, 7  # of 7 experts, 1 to 4 are here

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.rng = random.Random(SEED)

    def write(self, tensors, metadata):
        header, data = {"__metadata__": metadata}, b""
        for name, (dtype, shape, raw) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (self.folder / "case.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    def read(self):
        data = (self.folder / "out.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header, out = json.loads(data[8:start]), {}
        self.metadata = header.pop("__metadata__")
        for name, entry in header.items():
            begin, end = (start + o for o in entry["data_offsets"])
            raw = data[begin:end]
            if entry["dtype"] == "BF16":
                values = [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
            else:
                values = list(struct.unpack(f"<{len(raw) // 4}{'i' if entry['dtype'] == 'I32' else 'f'}", raw))
            for size in reversed(entry["shape"][1:]):
                values = [values[i:i + size] for i in range(0, len(values), size)]
            out[name] = values
        return out

    def stack(self, tensors, form, name, experts, halves, order):
        """Writes matrices, one per expert or (gate, up), under `name`."""
        def joined(parts):
            return parts[0] if halves == 1 else ordered(order, *parts)
        rows, cols = experts[0][0].rows * halves, experts[0][0].cols
        tensors[name + "_weights"] = (FORMATS[form][0], [self.E, rows, cols // 2 if FORMATS[form][0] == "U8" else cols],
                                      b"".join(b"".join(joined([m.codes for m in e])) for e in experts))
        kind = FORMATS[form][1]
        by_matrix = lambda e: e if halves == 1 or order != "up_gate" else e[::-1]
        if kind == "tensor":
            tensors[name + "_weights_scale"] = ("F32", [self.E, halves] if halves > 1 else [self.E],
                                                b"".join(m.scales[0] for e in experts for m in by_matrix(e)))
        elif kind:
            raw = b"".join(b"".join(joined([m.scales for m in e])) for e in experts)
            dtype, size = {"e8m0": ("U8", 1), "e4m3": ("F8_E4M3", 1)}.get(kind, ("F32", 4))
            down = sum(len(m.scales) for m in experts[0])
            tensors[name + "_weights_scale"] = (dtype, [self.E, down, len(raw) // size // self.E // down], raw)
        if form == "nvfp4":
            values = [m.scale_2[0] for e in experts for m in by_matrix(e)]
            tensors[name + "_weights_scale_2"] = ("F32", [self.E, halves] if halves > 1 else [self.E],
                                                  struct.pack(f"<{len(values)}f", *values))

    def floats(self, shape, draw):
        values = [f32(draw()) for _ in range(math.prod(shape))]
        return values, ("F32", list(shape), struct.pack(f"<{len(values)}f", *values))

    def within(self, got, candidates, slack, what):
        low, high = min(candidates), max(candidates)
        self.assertTrue(low - slack <= got <= high + slack, f"SLUICE_TEST_SEED={SEED}, {what}: {got} is not in [{low}, {high}] +- {slack}")

    def check(self, form, inputs, order, act, choice, extras, backend="auto"):
        rng, T, E, K, H, I = self.rng, self.T, self.E, self.K, self.H, self.I
        gated = act == "swiglu"
        what = f"{form} {inputs} {order} {act} {choice} {backend}"
        gemm1 = [[Matrix(rng, form, I, H) for _ in range(1 + gated)] for _ in range(E)]  # (gate, up) or (up)
        gemm2 = [[Matrix(rng, form, H, I)] for _ in range(E)]
        hidden = [[bf16(rng.gauss(0, 1)) for _ in range(H)] for _ in range(T)]
        tensors = {"hidden_states": ("BF16", [T, H], b"".join(struct.pack("<f", v)[2:] for row in hidden for v in row))}
        self.stack(tensors, form, "gemm1", gemm1, 1 + gated, order)
        self.stack(tensors, form, "gemm2", gemm2, 1, order)
        static = [f32(4 / 448), f32(30 / 448)] if inputs == "fp8_static" else [f32(4 / 2688), f32(30 / 2688)]
        if inputs in ("fp8_static", "nvfp4"):
            for name, value in zip(("gemm1_input_scale", "gemm2_input_scale"), static):
                tensors[name] = ("F32", [1], struct.pack("<f", value))
        bias_up = bias_gate = [[0.0] * I] * E
        bias_down, alpha, beta, limit = [[0.0] * H] * E, [1.0] * E, [0.0] * E, [math.inf] * E
        if extras:
            small = lambda: rng.gauss(0, 0.3)
            bias_up, bias_gate = ([[f32(small()) for _ in range(I)] for _ in range(E)] for _ in range(2))
            rows = [ordered(order, bias_gate[e], bias_up[e]) if gated else bias_up[e] for e in range(E)]
            tensors["gemm1_bias"] = ("F32", [E, len(rows[0])], b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows))
            flat, tensors["gemm2_bias"] = self.floats((E, H), small)
            bias_down = [flat[e * H:(e + 1) * H] for e in range(E)]
            if gated:
                alpha, tensors["gemm1_alpha"] = self.floats((E,), lambda: rng.uniform(1, 2))
                beta, tensors["gemm1_beta"] = self.floats((E,), lambda: rng.uniform(0, 1))
                limit, tensors["gemm1_clamp_limit"] = self.floats((E,), lambda: rng.uniform(1, 3))
        # Ids are global; -1, a foreign one and one out of range are among them.
        ids = [rng.sample(range(self.OFFSET, self.OFFSET + E), K) for _ in range(T)]
        ids[1][0], ids[2] = -1, [0, 30000]
        router = [[bf16(rng.uniform(-1, 1)) for _ in range(K)] for _ in range(T)]
        flat_ids, flat_router = sum(ids, []), sum(router, [])
        if choice == "packed":
            words = [struct.unpack("<i", struct.pack("<f", w)[2:] + struct.pack("<h", i))[0] for i, w in zip(flat_ids, flat_router)]
            tensors["topk_ids"] = ("I32", [T, K], struct.pack(f"<{T * K}i", *words))
        elif choice == "unpacked":
            tensors["topk_ids"] = ("I32", [T, K], struct.pack(f"<{T * K}i", *flat_ids))
            tensors["topk_weights"] = ("F32", [T, K], struct.pack(f"<{T * K}f", *flat_router))
        else:
            logits, tensors["routing_logits"] = self.floats((T, self.GLOBAL), lambda: rng.gauss(0, 2))
            for t in range(T):
                row = logits[t * self.GLOBAL:(t + 1) * self.GLOBAL]
                ids[t] = sorted(range(self.GLOBAL), key=lambda e: (-row[e], e))[:K]
                total = sum(math.exp(row[e]) for e in ids[t])
                router[t] = [math.exp(row[e]) / total for e in ids[t]]
        spec = (f"experts={self.GLOBAL} top_k={K} hidden={H} inter={I} weights={form} inputs={inputs} act={act} "
                f"local_offset={self.OFFSET} local_experts={E}")
        self.write(tensors, {"spec": spec, **({"w13_order": order} if gated else {})})
        result = subprocess.run([PROGRAM, "moe", "run", "case.safetensors", "-o", "out.safetensors", "--trace",
                                 "--moe-runner-backend", backend], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, f"{what}: {result.stderr}")
        out = self.read()
        self.assertEqual(set(out), {"output", "expert_ids", "expert_weights", "trace.input", "trace.up", "trace.activated",
                                    "trace.down"} | ({"trace.gate"} if gated else set()))

        dot = lambda a, b: math.fsum(x * y for x, y in zip(a, b))
        size = lambda a, b: sum(abs(x * y) for x, y in zip(a, b))
        unit = 2.0**-24  # every sum of n terms errs by at most n units of its magnitudes
        for t in range(T):
            exact = rounded(inputs, hidden[t], static[0])
            here = [self.OFFSET <= i < self.OFFSET + E for i in ids[t]]
            for k in range(K):
                shown = ids[t][k] if 0 <= ids[t][k] < self.GLOBAL else -1
                self.assertEqual(out["expert_ids"][t][k], shown, what)
                self.within(out["expert_weights"][t][k], [bf16(router[t][k] * (1 + d)) for d in (-1e-6, 0, 1e-6)], 0, what)
                if not here[k]:
                    for name in ("up", "activated", "down"):
                        self.assertFalse(any(out["trace." + name][t][k]), f"{what}: trace.{name} of an absent expert")
                    continue
                for h in range(H):
                    self.within(out["trace.input"][t][h], [exact[h]], 4 * unit * abs(exact[h]), what + " input")
                e = ids[t][k] - self.OFFSET
                x = out["trace.input"][t]
                halves = [("up", gemm1[e][-1], bias_up[e])] + ([("gate", gemm1[e][0], bias_gate[e])] if gated else [])
                for name, matrix, bias in halves:
                    for i in range(I):
                        row = matrix.values[i]
                        self.within(out["trace." + name][t][k][i], [dot(row, x) + bias[i]],
                                    (H + 6) * unit * (size(row, x) + abs(bias[i])), f"{what} {name}")
                a = []
                for i in range(I):
                    u = out["trace.up"][t][k][i]
                    if gated:
                        g = min(out["trace.gate"][t][k][i], limit[e])
                        u = max(-limit[e], min(u, limit[e]))
                        a.append((u + beta[e]) * g / (1 + math.exp(-alpha[e] * g)))
                    else:
                        a.append(max(u, 0.0)**2)
                stored = (lambda v: bf16(v)) if inputs in ("plain", "nvfp4_token") else f32
                nudges = (-4e-6, 0, 4e-6)
                rows = [rounded(inputs, [stored(v * (1 + d)) for v in a], static[1]) for d in nudges]
                for i in range(I):
                    got, candidates = out["trace.activated"][t][k][i], [row[i] for row in rows]
                    slack = 8e-6 * max(map(abs, candidates))
                    if not min(candidates) - slack <= got <= max(candidates) + slack:
                        # A value and those that its scales come from err each by itself.
                        mixed = [[stored(v * (1 + (d if j == i else others))) for j, v in enumerate(a)]
                                 for d in nudges for others in nudges]
                        candidates += [rounded(inputs, row, static[1])[i] for row in mixed]
                    self.within(got, candidates, slack, what + " activated")
                y = out["trace.activated"][t][k]
                for h in range(H):
                    row = gemm2[e][0].values[h]
                    exact_sum, slack = dot(row, y) + bias_down[e][h], (I + 6) * unit * (size(row, y) + abs(bias_down[e][h]))
                    self.within(out["trace.down"][t][k][h], [bf16(exact_sum - slack), bf16(exact_sum + slack)], 0, what + " down")
            for h in range(H):
                terms = [out["expert_weights"][t][k] * out["trace.down"][t][k][h] for k in range(K) if here[k]]
                total, slack = math.fsum(terms), (K + 1) * unit * sum(map(abs, terms))
                self.within(out["output"][t][h], [bf16(total - slack), bf16(total + slack)], 0, what + " output")

    def test_every_format_and_input_format(self):
        for form, inputs in ((f, i) for f in FORMATS for i in INPUTS[f]):
            with self.subTest(form=form, inputs=inputs):
                self.check(form, inputs, "gate_up", "swiglu", "packed", extras=True)
                self.check(form, inputs, "gate_up", "relu2", "unpacked", extras=False)

    def test_orders_of_gate_and_up(self):
        for form in FORMATS:
            for order in ("up_gate", "interleaved"):
                if (form, order) != ("fp8_block", "interleaved"):  # a scale would cover rows of both
                    with self.subTest(form=form, order=order):
                        self.check(form, INPUTS[form][-1], order, "swiglu", "logits", extras=True)

    def test_the_reference_backend(self):
        for form in FORMATS:
            with self.subTest(form=form):
                self.check(form, INPUTS[form][-1], "gate_up", "swiglu", "logits", extras=False, backend="reference")


if __name__ == "__main__":
    print(f"SLUICE_TEST_SEED={SEED}", flush=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
