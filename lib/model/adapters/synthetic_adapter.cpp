#include "model/adapters/synthetic_adapter.h"

#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/convert.h"
#include "base/rng.h"
#include "model/adapters/adapter_format.h"
#include "model/adapters/low_rank_format.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

constexpr float kDeviation = 0.02f;  // of a synthetic model's weights too

/// Tensors and the memory that they lie in.
class Tensors {
 public:
  explicit Tensors(uint64_t seed) : seed_(seed) {}

  void add(const std::string& name, const io::Shape& shape) {
    const int64_t n = shape[0] * shape[1];
    std::vector<std::byte>& memory = memory_.emplace_back(static_cast<size_t>(n) * sizeof(bf16));
    ops::fill_random(memory.data(), DType::bf16,
                     {.seed = seed_,
                      .tensor = static_cast<uint32_t>(views_.size()),
                      .first = 0,
                      .n = n,
                      .stddev = kDeviation});
    views_.push_back({name, DType::bf16, shape, memory});
  }
  void add(const std::string& name, std::span<const int32_t> index) {
    const auto bytes = std::as_bytes(index);
    std::vector<std::byte>& memory = memory_.emplace_back(bytes.begin(), bytes.end());
    views_.push_back({name, DType::i32, {std::ssize(index)}, memory});
  }
  io::Safetensors file(const std::map<std::string, std::string>& metadata) const {
    return io::Safetensors::hold(io::safetensors_bytes(views_, metadata), "a synthetic adapter");
  }

 private:
  uint64_t seed_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<io::TensorView> views_;
};

/// A share of the features, whole units, ascending.
std::vector<int32_t> some_features(int64_t features, int unit, double share, PhiloxStream& draw) {
  const auto units = static_cast<uint32_t>(features / unit);
  auto left = static_cast<uint32_t>(std::floor(share * units));
  std::vector<int32_t> index;
  for (uint32_t u = 0; u < units; ++u) {
    if (draw.below(units - u) >= left) continue;
    --left;
    for (int i = 0; i < unit; ++i) index.push_back(static_cast<int32_t>(u) * unit + i);
  }
  return index;
}

Adapter slices(const SyntheticAdapter& shape, const ModelConfig& config, const AdapterBase& base,
               uint64_t seed) {
  Tensors tensors(seed);
  PhiloxStream draw(seed);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const auto& [weight, share] : {std::pair(Role::o, shape.o), std::pair(Role::up, shape.up),
                                        std::pair(Role::down, shape.down)}) {
      const io::Shape all = shape_of(weight, config);
      const bool columns = ends_in_stream(weight);
      const std::vector<int32_t> index =
          some_features(all[columns ? 1 : 0], unit_features(weight, config), share, draw);
      if (index.empty()) continue;
      const auto n = std::ssize(index);
      tensors.add(adapter_prefix({weight, layer}) + "index", index);
      tensors.add(adapter_prefix({weight, layer}) + "value",
                  columns ? io::Shape{all[0], n} : io::Shape{n, all[1]});
    }
  return Adapter::parse(tensors.file({{kAdapterFormatKey, kAdapterFormat},
                                      {kAdapterVersionKey, kAdapterVersion},
                                      {kAdapterModeKey, kAdapterMode},
                                      {kAdapterBaseKey, base.name},
                                      {kAdapterFingerprintKey, base.fingerprint},
                                      {kAdapterStepsKey, "0"}}),
                        config, base);
}

LowRankAdapter factors(const SyntheticAdapter& shape, const ModelConfig& config, uint64_t seed) {
  Tensors tensors(seed);
  const std::array targets = {Role::q, Role::k, Role::v, Role::up, Role::down};
  std::vector<std::string> names;
  for (const Role w : targets) {
    const std::string path = module_path({w, 0});
    names.push_back(path.substr(path.rfind('.') + 1));
    for (int layer = 0; layer < config.n_layers; ++layer) {
      const io::Shape all = shape_of(w, config);
      tensors.add(factor_name(module_path({w, layer}), kFactorA), {shape.rank, all[1]});
      tensors.add(factor_name(module_path({w, layer}), kFactorB), {all[0], shape.rank});
    }
  }
  const nlohmann::json said = {{"peft_type", "LORA"},
                               {"r", shape.rank},
                               {"lora_alpha", shape.rank},
                               {"target_modules", names}};
  return LowRankAdapter::parse(tensors.file({{"format", "pt"}}), said.dump(), config);
}

}  // namespace

NamedAdapter synthetic_adapter(const SyntheticAdapter& shape, const std::string& name,
                               const ModelConfig& config, const AdapterBase& base, uint64_t seed) {
  AnyAdapter adapter = shape.low_rank ? AnyAdapter(factors(shape, config, seed))
                                      : AnyAdapter(slices(shape, config, base, seed));
  return {
      .name = name, .adapter = std::make_shared<const AnyAdapter>(std::move(adapter)), .weight = 1};
}

}  // namespace tandem::model
