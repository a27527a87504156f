# SPDX-License-Identifier: Apache-2.0
"""What `import flashinfer` finds while flashinfer_upstream.py runs FlashInfer's test files: sluice_moe.flashinfer's functions,
helpers by which the tests check results, and stand-ins that refuse for all the rest."""
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

# Plain Python of the checkout that tests configure themselves with.
OWN_MODULES = ("flashinfer.quantization.nvfp4_quantization_utils", "flashinfer.tllm_enums")


def load_helpers():
    """What tests import beside the functions under test, written from their documented meaning."""
    import torch

    import sluice_moe.flashinfer as ours
    from sluice_moe.flashinfer import _values
    from sluice_moe.flashinfer._layouts import linear_scales, shuffled_from

    def linear(scales, rows, groups, swizzled, layout="128x4"):
        flat = scales.view(torch.uint8).reshape(-1)
        return linear_scales(flat, rows, groups, layout) if swizzled else flat.reshape(rows, groups)

    def on_gpu(function):
        """Codes that come on the host are read on the GPU, many times as fast, and the values go back: float32's products
        are the same on both."""
        @functools.wraps(function)
        def call(codes, scales, global_scale=None, *arguments, **named):
            if codes.is_cuda or not torch.cuda.is_initialized():
                return function(codes, scales, global_scale, *arguments, **named)
            scale = global_scale.cuda() if torch.is_tensor(global_scale) else global_scale
            return function(codes.cuda(), scales.cuda(), scale, *arguments, **named).cpu()
        return call

    @on_gpu
    def e2m1_and_ufp8sf_scale_to_float(codes, scales, global_scale=None, sf_vec_size=16, ufp8_type=1,
                                       is_sf_swizzled_layout=True, is_sf_8x4_layout=False):
        codes = codes.view(torch.uint8)
        values = _values.e2m1(codes)
        s = linear(scales.to(codes.device), codes.shape[0], values.shape[1] // sf_vec_size, is_sf_swizzled_layout,
                   "8x4" if is_sf_8x4_layout else "128x4")
        out = _values.by_groups(values, _values.e4m3(s) if ufp8_type else _values.e8m0(s))
        if global_scale is None or ufp8_type == 0:  # UE8M0 scales have no global scale
            return out
        return out * global_scale.to(out.device)

    def mxfp4_dequantize(codes, scales, sfLayout=ours.SfLayout.layout_128x4):
        return e2m1_and_ufp8sf_scale_to_float(codes.cpu(), scales.cpu(), None, 32, 0,
                                              sfLayout != ours.SfLayout.layout_linear, sfLayout == ours.SfLayout.layout_8x4)

    def mxfp4_dequantize_host(codes, scales, group_size=32):
        return e2m1_and_ufp8sf_scale_to_float(codes, scales, None, group_size, 0, False)

    def mxfp8_dequantize_host(codes, scales, is_sf_swizzled_layout=True, sf_swizzle_layout=None):
        return mxfp8_values(codes, scales, None, is_sf_swizzled_layout, sf_swizzle_layout)

    @on_gpu
    def mxfp8_values(codes, scales, _, is_sf_swizzled_layout, sf_swizzle_layout):
        if sf_swizzle_layout is not None:
            is_sf_swizzled_layout = sf_swizzle_layout != ours.SfLayout.layout_linear
        s = linear(scales, codes.shape[0], codes.shape[1] // 32, is_sf_swizzled_layout)
        return _values.by_groups(_values.e4m3(codes.view(torch.uint8)), _values.e8m0(s))

    @functools.cache  # the tests ask for each expert
    def order_of_rows(rows, epilogue_tile_m, halves, device):
        order = torch.arange(rows)
        if halves:
            order = order.reshape(2, -1).T.reshape(-1)
        return order[torch.tensor(shuffled_from(rows, epilogue_tile_m))].to(device)

    def get_w2_permute_indices_with_cache(cache, weight, epilogue_tile_m, num_elts_per_sf=None):
        return order_of_rows(weight.shape[0], epilogue_tile_m, False, weight.device)

    def _maybe_get_cached_w3_w1_permute_indices(cache, weight, epilogue_tile_m, num_elts_per_sf=None,
                                                is_gated_act_gemm=True):
        return order_of_rows(weight.shape[0], epilogue_tile_m, bool(is_gated_act_gemm), weight.device)

    def flashinfer_api(function=None, **named):  # a decorator that logs
        return function if function is not None else lambda f: f

    @contextlib.contextmanager
    def autotune(*arguments, **named):
        yield

    class Product:  # a function that says which backends it has
        def __init__(self, function):
            self.function = function

        def __call__(self, *arguments, **named):
            return self.function(*arguments, **named)

        @staticmethod
        def is_backend_supported(backend, capability=None):
            return backend in ("auto", "cutlass", "cudnn")

        is_compute_capability_supported = staticmethod(lambda capability: True)

    class LibraryError(Exception):
        pass

    return {
        **{name: value for name, value in locals().items() if callable(value) and name not in
           ("Product", "linear", "linear_scales", "shuffled_from", "on_gpu", "order_of_rows", "mxfp8_values")},
        "mm_fp4": Product(ours.mm_fp4), "mm_mxfp8": Product(ours.mm_mxfp8),
        "get_compute_capability": lambda device=None: (10, 0), "is_sm100a_supported": lambda device=None: True,
        "is_sm90a_supported": lambda device=None: False, "is_sm110a_supported": lambda device=None: False,
        "is_sm12x_supported": lambda device=None: False, "device_support_pdl": lambda device=None: False,
        "version_at_least": lambda *versions: True, "round_up": lambda x, y: -(-x // y) * y,
        "is_cute_dsl_available": lambda: False, "is_cuda_tile_available": lambda: False,
        "CUDNN_FP4_MXFP4_SM120_CUDNN_VERSION_ERROR": "-",
    }


class Missing:
    """Stands for what sluice_moe.flashinfer does not have; refuses when it is used."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments, **named):
        import sluice_moe
        raise sluice_moe.Unsupported(f"{self.name} is called; accepted: what sluice_moe.flashinfer's docstring lists")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

    def __iter__(self):
        return iter(())


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        import sluice_moe.flashinfer as ours
        if name in ("is_gated_activation", "ActivationType", "RoutingMethodType"):  # wherever it is imported from
            return getattr(importlib.import_module("flashinfer.tllm_enums"), name)
        if name in Finder.helpers:
            return Finder.helpers[name]
        if hasattr(ours, name) and not isinstance(getattr(ours, name), types.ModuleType):
            return getattr(ours, name)
        if name.endswith("Error"):
            return type(name, (Exception,), {})
        return Missing(f"{self.__name__}.{name}".removeprefix("flashinfer."))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    helpers: dict = {}

    def __init__(self, checkout):
        self.checkout = checkout

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "flashinfer":
            return None
        if name in OWN_MODULES:
            file = self.checkout / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def install(checkout):
    """From here on `import flashinfer` finds this file's modules. checkout: a path, of FlashInfer's repository."""
    sys.meta_path.insert(0, Finder(checkout))
    Finder.helpers = load_helpers()
