# SPDX-License-Identifier: Apache-2.0
"""Loops over tokens in the references of FlashInfer's MoE tests, as indexing: seconds of a case with 3072 tokens become
milliseconds. The integers are the same, and every float is made by the same operations in the same order.

    flashinfer_loops.py CHECKOUT    # compares both forms on the CPU
"""
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import textwrap

MODULE = "tests.moe.trtllm_gen_fused_moe_utils"

# (its text in MODULE, what stands in its place), both without their common indentation
LOOPS = [
    ("""
for i in range(topk_idx.shape[0]):
    for j in range(topk_idx.shape[1]):
        scores[i, topk_idx[i, j]] = topk_values[i, j]
""", """
scores.scatter_(1, topk_idx, topk_values.to(scores.dtype))
"""),
    ("""
for tokenIdx in range(numTokens):
    for k in range(totalExpertsPerToken):
        expandedIdx = tokenIdx * totalExpertsPerToken + k
        expertIndex = topKIndices[tokenIdx, k]
        expandedTokenIdxToExpert[expandedIdx] = expertIndex
        expandedTokenIdxToIdxInExpert[expandedIdx] = numTokensPerExpert[expertIndex]
        numTokensPerExpert[expertIndex] += 1
""", """
expandedTokenIdxToExpert = topKIndices.reshape(-1).clone()
numTokensPerExpert = torch.bincount(expandedTokenIdxToExpert, minlength=numTotalExperts)
sortedExperts, byExpert = torch.sort(expandedTokenIdxToExpert, stable=True)
firsts = numTokensPerExpert.cumsum(0) - numTokensPerExpert
expandedTokenIdxToIdxInExpert[byExpert] = torch.arange(byExpert.numel()) - firsts[sortedExperts]
"""),
    ("""
for tokenIdx in range(numTokens):
    for k in range(totalExpertsPerToken):
        expandedIdx = tokenIdx * totalExpertsPerToken + k
        expert = expandedTokenIdxToExpert[expandedIdx]
        offsetWithinExpert = expandedTokenIdxToIdxInExpert[expandedIdx]
        offsetForExpert = paddedTokensPerExpertPrefixSum[expert]
        permutedIdx = offsetForExpert + offsetWithinExpert

        expandedTokenIdxToPermutedIdx[expandedIdx] = permutedIdx
        permutedIdxToExpandedIdx[permutedIdx] = expandedIdx
        permutedIdxToTokenIdx[permutedIdx] = tokenIdx
""", """
expandedTokenIdxToPermutedIdx = paddedTokensPerExpertPrefixSum[expandedTokenIdxToExpert] + expandedTokenIdxToIdxInExpert
permutedIdxToExpandedIdx[expandedTokenIdxToPermutedIdx] = torch.arange(numTokens * totalExpertsPerToken)
permutedIdxToTokenIdx[expandedTokenIdxToPermutedIdx] = torch.arange(numTokens * totalExpertsPerToken) // totalExpertsPerToken
"""),
    ("""
for i in range(args.num_tokens):
    for j in range(args.top_k):
        permuted_idx = expanded_idx_to_permuted_idx[i * args.top_k + j]
        permute_output[permuted_idx] = args.hidden_states[i]
""", """
rows_of_tokens = expanded_idx_to_permuted_idx.to(permute_output.device)
permute_output[rows_of_tokens] = args.hidden_states.to(permute_output).repeat_interleave(args.top_k, 0)
"""),
    ("""
for token_idx in range(args.num_tokens):
    for k in range(args.top_k):
        # Get the permuted index for this token's k-th expert
        expanded_idx = token_idx * args.top_k + k
        permuted_idx = expanded_idx_to_permuted_idx[expanded_idx]
        expert_weight = args.permute_info["topKLogits"].to(torch.float)
        # Get the expert weight for this token and expert
        weight = expert_weight[token_idx, k]
        # Scale the corresponding row in gemm1_output
        gemm1_output[permuted_idx] *= weight
""", """
gemm1_output[rows_of_tokens] *= args.permute_info["topKLogits"].to(gemm1_output).reshape(-1, 1)
"""),
    ("""
for i in range(args.num_tokens):
    acc = torch.zeros(args.hidden_size, dtype=torch.float, device="cuda")
    for top_k_idx in range(args.top_k):
        expanded_idx = i * args.top_k + top_k_idx
        permuted_idx = expanded_idx_to_permuted_idx[expanded_idx]
        original_vector = gemm2_output[permuted_idx]
        weight = (
            expert_weight[i, top_k_idx]
            if not args.use_routing_scales_on_input
            else 1.0
        )
        acc += original_vector * weight
    finalize_output[i] = acc
""", """
finalize_output.zero_()
for top_k_idx in range(args.top_k):
    original_vectors = gemm2_output[rows_of_tokens[top_k_idx :: args.top_k]]
    weight = expert_weight[:, top_k_idx, None] if not args.use_routing_scales_on_input else 1.0
    finalize_output += original_vectors * weight
"""),
]


def replaced(source):
    """(the text with indexing, the loops that were not found in it)"""
    missing = []
    for number, (loop, indexing) in enumerate(LOOPS):
        for depth in ("    ", "        "):
            old = textwrap.indent(loop.strip("\n"), depth) + "\n"
            if "\n" + old in source:
                source = source.replace("\n" + old, "\n" + textwrap.indent(indexing.strip("\n"), depth) + "\n")
                break
        else:
            missing.append(number)
    return source, missing


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # not from a .pyc, nor into one
        source, missing = replaced(self.get_source(fullname))
        for number in missing:
            print(f"{self.path} has changed: loop {number} of {__file__} is not in it and stays as it is", file=sys.stderr)
        return compile(source, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        return importlib.util.spec_from_file_location(name, spec.origin, loader=Loader(name, spec.origin))


def install():
    sys.meta_path.insert(0, Finder())


def compare(checkout):
    """Runs the references of the file and of its changed text on the same inputs on the CPU."""
    import types

    import torch

    import flashinfer_stand_in
    sys.path.insert(0, str(checkout))
    flashinfer_stand_in.install(checkout)
    torch.cuda.get_device_capability = lambda device=None: (10, 0)
    path = checkout / (MODULE.replace(".", "/") + ".py")
    forms = []
    for source in (path.read_text(), replaced(path.read_text())[0]):
        module = types.ModuleType("forms")
        module.__package__ = MODULE.rpartition(".")[0]
        sys.modules["forms"] = module
        exec(compile(source.replace('"cuda"', '"cpu"').replace(".cuda()", ""), str(path), "exec"), module.__dict__)
        forms.append(module)
    assert replaced(path.read_text())[1] == [], "a loop was not found"

    def same(a, b):
        for key in a:
            equal = torch.equal(a[key], b[key]) if torch.is_tensor(a[key]) else a[key] == b[key]
            assert equal, key

    compared = 0
    for tokens, experts, top_k, padding, dtype in [(1, 8, 1, 8, torch.float32), (37, 16, 4, 8, torch.bfloat16),
                                                   (64, 32, 8, 1, torch.float32), (5, 256, 22, 16, torch.bfloat16)]:
        logits = torch.randn(tokens, experts).to(dtype)
        bias = torch.randn(experts)
        for method in ("default", "renormalize", "renormalize_naive", "topk", "sigmoid_renorm", "topk_sigmoid", "minimax2",
                       "no_aux"):
            results = []
            for form in forms:
                function = getattr(form, f"routing_reference_{method}")
                if method == "no_aux":
                    results.append(function(logits, bias, top_k, 1, 1, 2.5, padding))
                elif method == "minimax2":
                    results.append(function(logits, bias, top_k, experts, padding, 2.5))
                else:
                    results.append(function(logits, top_k, experts, padding))
            (info, scores), (other_info, other_scores) = results
            same(info, other_info)
            assert torch.equal(scores, other_scores), method
            for on_input in ([False, True] if top_k == 1 else [False]):
                outs = [form.run_moe_dequant(arguments(tokens, experts, top_k, padding, info, on_input, form), form.QuantMode.BF16)
                        for form in forms]
                assert outs[0].isfinite().all() and torch.equal(*outs), (method, on_input)
                compared += 1
        same(forms[0].routing_reference(logits, top_k, padding, 2), forms[1].routing_reference(logits, top_k, padding, 2))
    print(f"{compared} references are equal to the bit")


def arguments(tokens, experts, top_k, padding, info, on_input, form):
    import types

    import torch
    torch.manual_seed(tokens)
    return types.SimpleNamespace(
        permute_info=info, hidden_size=32, intermediate_size=16, num_tokens=tokens, num_experts=experts, top_k=top_k,
        padding=padding, hidden_states=torch.randn(tokens, 32).bfloat16(), gemm1_weights=torch.randn(experts, 32, 32),
        gemm2_weights=torch.randn(experts, 32, 16), gemm1_bias=None, gemm2_bias=None, gemm1_lora_delta=None, gemm1_alpha=None,
        gemm1_beta=None, gemm1_clamp_limit=None, use_routing_scales_on_input=on_input,
        activation_type=form.ActivationType.Swiglu.value)


if __name__ == "__main__":
    compare(pathlib.Path(sys.argv[1]).resolve())
