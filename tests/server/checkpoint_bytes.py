# SPDX-License-Identifier: Apache-2.0
"""What a trainer does, without torch: the tensors of a safetensors file, and sending them to `sluice serve`."""
import hashlib
import json
import os
import struct
from multiprocessing import shared_memory


def read_checkpoint(folder):
    """{name: (safetensors dtype, shape, bytes)} of a model's folder."""
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        for name, t in header.items():
            begin, end = (8 + size + at for at in t["data_offsets"])
            tensors[name] = (t["dtype"], t["shape"], data[begin:end])
    return tensors


def other_weights(folder):
    """Changes a copy of a model: each token gets the embedding of the one as far from the vocabulary's other end. Shapes,
    names and types stay, so that a server takes it in the first one's place, and its texts differ."""
    changed = False
    for file in sorted(folder.glob("model*.safetensors")):
        data = bytearray(file.read_bytes())
        begin = 8 + struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:begin])
        for name in header:
            if "embed" in name:
                first, last = (begin + at for at in header[name]["data_offsets"])
                size = (last - first) // header[name]["shape"][0]
                data[first:last] = b"".join(bytes(data[at:at + size]) for at in range(last - size, first - 1, -size))
                changed = True
        file.unlink()  # a link to the first model's file, perhaps
        file.write_bytes(data)
    assert changed, folder
    return folder


def checksums(tensors):
    """What /weights_checker answers for them: {name: SHA-256}, and that of all."""
    each = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in tensors.items()}
    all_of_them = hashlib.sha256()
    for name in sorted(each):
        all_of_them.update(name.encode())
        all_of_them.update(each[name].encode())
    return each, hashlib.sha256(all_of_them.hexdigest().encode()).hexdigest()


def halved(tensor):
    """The same with every float halved."""
    dtype, shape, data = tensor
    if dtype == "F32":
        values = struct.unpack(f"<{len(data) // 4}f", data)
        return dtype, shape, struct.pack(f"<{len(values)}f", *(v / 2 for v in values))
    assert dtype == "BF16", dtype
    bits = struct.unpack(f"<{len(data) // 2}H", data)
    return dtype, shape, struct.pack(f"<{len(bits)}H", *(b - 0x80 if b & 0x7f80 > 0x80 else b for b in bits))


class SharedTensors:
    """Tensors one after the other in a POSIX shared memory; `spec` is the body that names them."""

    def __init__(self, tensors):
        offset, listed = 0, []
        for name, (dtype, shape, data) in tensors.items():
            listed.append({"name": name, "dtype": dtype, "shape": shape, "offset": offset})
            offset += len(data)
        self.memory = shared_memory.SharedMemory(f"sluice_test_{os.getpid()}_{id(self):x}", create=True, size=max(1, offset))
        for entry, (_, _, data) in zip(listed, tensors.values()):
            self.memory.buf[entry["offset"]:entry["offset"] + len(data)] = data
        self.spec = {"tensors": listed, "shared_memory": self.memory.name}

    def __enter__(self):
        return self.spec

    def __exit__(self, *_):
        self.memory.close()
        self.memory.unlink()
