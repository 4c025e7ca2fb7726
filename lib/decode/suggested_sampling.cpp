#include "decode/suggested_sampling.h"

#include <climits>

#include "io/file.h"
#include "io/json.h"
#include "recipe/fields.h"

namespace tandem::decode {

recipe::Sampling parse_suggested_sampling(std::string_view text, const std::string& where) {
  const io::Json j = io::parse_json(text, where);
  recipe::Sampling s;
  const recipe::Field fields = recipe::fields_of(s);
  const auto number = [&](const char* key) {
    const std::optional<double> value = io::find_double(j, key, where);
    const recipe::Limits& limits = recipe::find_field(fields, key)->limits;
    if (value && !limits.admit(*value))
      throw input_error(where, "key '{}': {} is out of range, expected {}", key, *value,
                        limits.text())
          .hint("correct the file, or omit sampling.from=model");
    return value;
  };
  s.temperature = number("temperature");
  if (const auto k = io::find_int(j, "top_k", where, 0, INT_MAX)) s.top_k = static_cast<int>(*k);
  s.top_p = number("top_p");
  s.min_p = number("min_p");
  const bool draws = io::find_bool(j, "do_sample", where).value_or(s.is_set());
  if (!draws)
    s.temperature = 0;
  else if (!s.temperature)
    s.temperature = 1;
  s.repetition_penalty = number("repetition_penalty");
  return s;
}

recipe::Sampling suggested_sampling(const std::filesystem::path& model_folder) {
  const std::filesystem::path file = model_folder / "generation_config.json";
  if (model_folder.empty() || !std::filesystem::exists(file)) return {};
  constexpr size_t kMaxBytes = size_t{16} << 20;
  return parse_suggested_sampling(io::read_regular_file(file, kMaxBytes), file.string());
}

void fill(recipe::Sampling& sampling, const recipe::Sampling& suggested) {
  const auto take = [](auto& value, const auto& other) {
    if (!value) value = other;
  };
  take(sampling.temperature, suggested.temperature);
  take(sampling.top_k, suggested.top_k);
  take(sampling.top_p, suggested.top_p);
  take(sampling.min_p, suggested.min_p);
  take(sampling.repetition_penalty, suggested.repetition_penalty);
}

GenerateSpec generate_spec(const recipe::Sampling& s, int64_t seed, int top_logprobs,
                           const model::ModelConfig& config, int max_context) {
  GenerateSpec g;
  const ops::SampleRule off;
  g.sampler.rule = {.temperature = static_cast<float>(s.temperature.value_or(off.temperature)),
                    .top_k = s.top_k.value_or(off.top_k),
                    .top_p = s.top_p.value_or(off.top_p),
                    .min_p = s.min_p.value_or(off.min_p),
                    .repetition_penalty =
                        static_cast<float>(s.repetition_penalty.value_or(off.repetition_penalty))};
  g.sampler.seed = seed;
  g.sampler.top_logprobs = top_logprobs;
  g.max_tokens = s.max_tokens;
  g.max_context = max_context;
  g.stop_ids.assign(config.eos_ids.begin(), config.eos_ids.end());
  for (const int id : s.stop_ids) {
    if (id >= config.vocab_size)
      throw recipe_error("sampling.stop_ids",
                         "expected a token id of the model, found {}; its ids end at {}", id,
                         config.vocab_size - 1);
    g.stop_ids.push_back(id);
  }
  g.stops = s.stop;
  return g;
}

}  // namespace tandem::decode
