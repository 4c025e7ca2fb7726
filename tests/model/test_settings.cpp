#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "io/json.h"
#include "model/spec/settings.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;

namespace {

Json with(Json j, const Json& changes) {
  j.merge_patch(changes);
  return j;
}

ModelConfig parse(const Json& j) { return parse_config(j.dump(), "config.json"); }

Json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"head_dim", 8},
          {"intermediate_size", 172},
          {"vocab_size", 512},
          {"max_position_embeddings", 256}};
}

Json yarn() {
  return with(
      llama(),
      {{"rope_scaling",
        {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}}}});
}

Json llama3() {
  return with(llama(), {{"rope_scaling",
                         {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0}}}});
}

Json qwen2() {
  return with(llama(), {{"architectures", {"Qwen2ForCausalLM"}},
                        {"use_sliding_window", true},
                        {"sliding_window", 32},
                        {"max_window_layers", 2}});
}

Json granite() {
  return with(llama(), {{"architectures", {"GraniteForCausalLM"}}, {"attention_multiplier", .25}});
}

Json smollm3() { return with(llama(), {{"architectures", {"SmolLM3ForCausalLM"}}}); }

Json gemma3() { return with(llama(), {{"architectures", {"Gemma3ForCausalLM"}}}); }

Json phi3() {
  return with(llama(),
              {{"architectures", {"Phi3ForCausalLM"}},
               {"partial_rotary_factor", .5},
               {"rope_scaling",
                {{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {2, 4}}}}});
}

/// Keys of `now` that differ from those of `then`.
std::vector<std::string> changed_keys(const Json& then, const Json& now) {
  std::vector<std::string> keys;
  for (const std::string& line :
       changed_settings(settings_of(parse(now)), settings_text(settings_of(parse(then)))))
    keys.push_back(line.substr(1, line.find("' ") - 1));
  return keys;
}

struct Change {
  Json base, patch;
  std::string key;
};

Json scaling(const Json& changes) { return {{"rope_scaling", changes}}; }

}  // namespace

TEST_SUITE("model/settings") {
  TEST_CASE("every key of config.json that changes a logit is among the settings") {
    const Change changes[] = {
        {llama(), {{"architectures", {"MistralForCausalLM"}}}, "architectures"},
        {llama(), {{"architectures", {"Qwen3ForCausalLM"}}}, "q_norm and k_norm"},
        {granite(), {{"attention_multiplier", .5}}, "attention_multiplier"},
        {granite(), {{"residual_multiplier", .5}}, "residual_multiplier"},
        {granite(), {{"embedding_multiplier", 2}}, "embedding_multiplier"},
        {granite(), {{"logits_scaling", 2}}, "factor of logits"},
        {smollm3(), {{"no_rope_layer_interval", 2}}, "layers without RoPE"},
        {llama(), {{"architectures", {"Olmo2ForCausalLM"}}}, "q_norm and k_norm of rows"},
        {llama(), {{"architectures", {"Olmo2ForCausalLM"}}}, "norms before attention and FFN"},
        {llama(), {{"architectures", {"Olmo2ForCausalLM"}}}, "norms after attention and FFN"},
        {gemma3(), {{"rope_local_base_freq", 5000}}, "RoPE of sliding layers"},
        {gemma3(), {{"query_pre_attn_scalar", 100}}, "attention_multiplier"},
        {gemma3(), {{"sliding_window_pattern", 2}}, "layer_types"},
        {llama(), {{"architectures", {"Gemma3ForCausalLM"}}}, "norms of 1 + weight"},
        {phi3(), scaling({{"short_factor", {1, 1.5}}}), "short_factor"},
        {phi3(), scaling({{"long_factor", {2, 5}}}), "long_factor"},
        {llama(),
         {{"architectures", {"Phi3ForCausalLM"}}, {"partial_rotary_factor", .5}},
         "dimensions of a head with RoPE"},
        {llama(), {{"hidden_act", "relu"}}, "hidden_act"},
        {llama(), {{"hidden_size", 128}}, "hidden_size"},
        {llama(), {{"num_hidden_layers", 3}}, "num_hidden_layers"},
        {llama(), {{"num_attention_heads", 16}}, "num_attention_heads"},
        {llama(), {{"num_key_value_heads", 2}}, "num_key_value_heads"},
        {llama(), {{"head_dim", 16}}, "head_dim"},
        {llama(), {{"intermediate_size", 100}}, "intermediate_size"},
        {llama(), {{"vocab_size", 500}}, "vocab_size"},
        {llama(), {{"rms_norm_eps", 1e-5}}, "rms_norm_eps"},
        {llama(), {{"attention_bias", true}}, "attention_bias"},
        {llama(), {{"attention_bias", true}}, "attention_bias of o_proj"},
        {llama(), {{"mlp_bias", true}}, "mlp_bias"},
        {llama(), {{"tie_word_embeddings", true}}, "tie_word_embeddings"},
        {llama(), {{"rope_theta", 5e5}}, "rope_theta"},
        {llama(), scaling({{"type", "linear"}, {"factor", 2}}), "rope_type"},
        {qwen2(), {{"sliding_window", 16}}, "sliding_window"},
        {qwen2(), {{"max_window_layers", 1}}, "max_window_layers"},
        {llama3(), scaling({{"low_freq_factor", 2.0}}), "low_freq_factor"},
        {llama3(), scaling({{"high_freq_factor", 3.0}}), "high_freq_factor"},
        {yarn(), scaling({{"factor", 8.0}}), "factor"},
        {yarn(), scaling({{"original_max_position_embeddings", 32}}),
         "original_max_position_embeddings"},
        {yarn(), scaling({{"beta_fast", 16}}), "beta_fast"},
        {yarn(), scaling({{"beta_slow", 4}}), "beta_slow"},
        {yarn(), scaling({{"truncate", false}}), "truncate"},
        {yarn(), scaling({{"attention_factor", 2.0}}), "attention_factor"},
        {yarn(), scaling({{"mscale", 2.0}, {"mscale_all_dim", 1.0}}), "attention_factor"},
    };
    std::set<std::string> seen;
    for (const Change& c : changes) {
      CAPTURE(c.key);
      const std::vector<std::string> keys = changed_keys(c.base, with(c.base, c.patch));
      CHECK(std::ranges::find(keys, c.key) != keys.end());
      CHECK(changed_keys(c.base, c.base).empty());
      seen.insert(c.key);
    }
    // A new setting needs a line above.
    for (const Setting& s : settings_of(parse(llama()))) CHECK_MESSAGE(seen.contains(s.key), s.key);
  }

  TEST_CASE("keys that change no logit are not") {
    for (const Json& patch : {Json{{"max_position_embeddings", 128}}, Json{{"bos_token_id", 1}},
                              Json{{"eos_token_id", 2}}, Json{{"torch_dtype", "bfloat16"}}})
      CHECK(changed_keys(yarn(), with(yarn(), patch)).empty());
  }

  TEST_CASE("a record names what differs; one without a key is fine if the value is usual") {
    const Json base = yarn();
    const Json other = with(base, scaling({{"attention_factor", 2.0}, {"beta_slow", 4}}));
    const std::string recorded = settings_text(settings_of(parse(base)));
    CHECK(changed_settings(settings_of(parse(other)), recorded) ==
          std::vector<std::string>{"'beta_slow' was 1, now 4",
                                   "'attention_factor' was 1.138629436111989, now 2"});
    CHECK(changed_settings(settings_of(parse(other)), "") ==
          std::vector<std::string>{"'beta_slow' was not recorded, now 4",
                                   "'attention_factor' was not recorded, now 2"});
    CHECK(changed_settings(settings_of(parse(base)), "").empty());
    CHECK(changed_settings(settings_of(parse(base)), "a line\n=\nfactor=4\n\n").empty());
    CHECK(changed_settings(settings_of(parse(base)), "factor=3") ==
          std::vector<std::string>{"'factor' was 3, now 4"});
  }
}
