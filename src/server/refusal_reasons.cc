// SPDX-License-Identifier: Apache-2.0
#include "server/refusal_reasons.h"

#include <algorithm>
#include <array>

namespace sluice::server {

namespace {
struct Refusal {
  std::string_view field, reason;
};

constexpr std::string_view kTextOnly = "the models here read and write text only",
                           kNothingStored = "nothing is stored between requests: each brings all of its messages",
                           kNoCode = "a logit processor is code, and a request's code is never run",
                           kTemplates = "templates come from the checkpoint or from the server's own options",
                           kNoWord = "chat templates have no word for it",
                           kOneRole = "one server does prefill and decode, so nothing is transferred",
                           kAdapters = "adapters (LoRA) are not loaded",
                           kWhitespace = "white space between the parts of JSON is at most 16 characters",
                           kReplacedWhole = "weights are replaced whole, and the answer comes when that is done",
                           kProfile = "a trace begins with the next step and has all of its parts",
                           kNotHandedOut = "it is not handed out";

constexpr std::array kRefusals{
    Refusal{"add_special_tokens", "beside messages, the template decides which special tokens there are"},
    Refusal{"audio", kTextOnly},
    Refusal{"audio_data", kTextOnly},
    Refusal{"background", "an answer goes to the connection that asked for it, and is not stored"},
    Refusal{"bootstrap_host", kOneRole},
    Refusal{"bootstrap_port", kOneRole},
    Refusal{"bootstrap_room", kOneRole},
    Refusal{"chat_template", kTemplates},
    Refusal{"container", "the server runs nothing for a model"},
    Refusal{"context_management", "edits are not applied: the model reads the whole conversation"},
    Refusal{"conversation", kNothingStored},
    Refusal{"custom_logit_processor", kNoCode},
    Refusal{"custom_params", kNoCode},
    Refusal{"defer_loading", kNoWord},
    Refusal{"disable_any_whitespace", kWhitespace},
    Refusal{"echo", "a chat's prompt is its template's text: /v1/tokenize gives it"},
    Refusal{"enable_response_messages", "the tokens of the messages are not handed out"},
    Refusal{"function_call", "it is deprecated; accepted: tools and tool_choice"},
    Refusal{"functions", "it is deprecated; accepted: tools"},
    Refusal{"guided_whitespace_pattern", kWhitespace},
    Refusal{"image_data", kTextOnly},
    Refusal{"input_embeds", "prompts are text or token ids"},
    Refusal{"input_examples", kNoWord},
    Refusal{"is_async", kReplacedWhole},
    Refusal{"keep_pause", kReplacedWhole},
    Refusal{"kv_transfer_params", kOneRole},
    Refusal{"length_penalty", "it is for beam search, and a step chooses one token per answer"},
    Refusal{"lora_path", kAdapters},
    Refusal{"manifest", kReplacedWhole},
    Refusal{"max_tool_calls", "it counts built-in tools, and the server runs none"},
    Refusal{"mcp_servers", "the server runs nothing for a model"},
    Refusal{"merge_profiles", kProfile},
    Refusal{"prediction", "drafts come from the checkpoint's own draft layer"},
    Refusal{"previous_response_id", kNothingStored},
    Refusal{"profile_by_stage", kProfile},
    Refusal{"profile_stages", kProfile},
    Refusal{"prompt", kNothingStored},
    Refusal{"prompt_embeds", "prompts are text or token ids"},
    Refusal{"return_bytes", kNotHandedOut},
    Refusal{"return_entropy", kNotHandedOut},
    Refusal{"return_hidden_states", "hidden states are not handed out"},
    Refusal{"return_prompt_token_ids", "/v1/tokenize gives the token ids of a prompt"},
    Refusal{"return_routed_experts", "/generate has the routed experts"},
    Refusal{"return_sampling_mask", "the sampler does not hand out which tokens top_k and top_p left"},
    Refusal{"return_token_strs", "/v1/detokenize gives the text of each token"},
    Refusal{"session_params", kNothingStored},
    Refusal{"start_step", kProfile},
    Refusal{"stop_regex", "a text ends at strings (stop) and token ids (stop_token_ids) only"},
    Refusal{"suffix", "the models here continue a text and cannot fill a gap in one"},
    Refusal{"tools", "a completion has no template that could name tools; accepted: in a chat"},
    Refusal{"truncate_prompt_tokens", "a prompt that does not fit is refused, never cut"},
    Refusal{"use_beam_search", "a step chooses one token per answer; n gives several answers"},
    Refusal{"verbosity", kNoWord},
    Refusal{"video_data", kTextOnly},
    Refusal{"web_search_options", "the server runs nothing for a model"},
    Refusal{"whitespace_pattern", kWhitespace},
};
static_assert(std::is_sorted(kRefusals.begin(), kRefusals.end(),
                             [](const Refusal& a, const Refusal& b) { return a.field < b.field; }));
}  // namespace

std::string_view refusal_reason(std::string_view field) {
  const auto at = std::lower_bound(kRefusals.begin(), kRefusals.end(), field,
                                   [](const Refusal& r, std::string_view name) { return r.field < name; });
  return at != kRefusals.end() && at->field == field ? at->reason : std::string_view{};
}

}  // namespace sluice::server
