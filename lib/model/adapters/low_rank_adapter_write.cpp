#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "model/adapters/low_rank_adapter.h"
#include "model/adapters/low_rank_format.h"

namespace tandem::model {
namespace {

/// Names of the matrices that have factors: of the kinds given, or each of the deltas' by its path,
/// so that PEFT gives no other matrix factors.
std::vector<std::string> target_names(const LowRankInfo& info,
                                      std::span<const LowRankDelta> deltas) {
  std::vector<std::string> names;
  for (const Role w : info.targets) {
    const std::string path = module_path({w, 0});
    names.push_back(path.substr(path.rfind('.') + 1));
  }
  if (info.targets.empty())
    for (const LowRankDelta& d : deltas) names.push_back(module_path(d.id));
  return names;
}

std::string config_text(const LowRankInfo& info, std::span<const LowRankDelta> deltas) {
  // Of other ranks than most, with the same gamma.
  nlohmann::json ranks = nlohmann::json::object(), alphas = nlohmann::json::object();
  for (const LowRankDelta& d : deltas)
    if (d.rank != info.rank) {
      const double share = static_cast<double>(d.rank) / static_cast<double>(info.rank);
      const std::string path = module_path(d.id);
      ranks[path] = d.rank;
      alphas[path] = info.alpha * (info.rslora ? std::sqrt(share) : share);
    }
  // The keys that every version of PEFT has, and no other: old ones refuse those that they do not
  // know. Keys left out would silently be 8, 8 and q_proj, v_proj.
  const nlohmann::json config = {{"alpha_pattern", alphas},
                                 {"base_model_name_or_path", info.base},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"inference_mode", true},
                                 {"init_lora_weights", true},
                                 {"layers_pattern", nullptr},
                                 {"layers_to_transform", nullptr},
                                 {"lora_alpha", info.alpha},
                                 {"lora_dropout", info.dropout},
                                 {"modules_to_save", nullptr},
                                 {"peft_type", "LORA"},
                                 {"r", info.rank},
                                 {"rank_pattern", ranks},
                                 {"revision", nullptr},
                                 {"target_modules", target_names(info, deltas)},
                                 {"task_type", "CAUSAL_LM"},
                                 {"use_dora", info.dora},
                                 {"use_rslora", info.rslora}};
  return config.dump(2) + "\n";
}

}  // namespace

void write_low_rank_adapter(const std::filesystem::path& folder, const LowRankInfo& info,
                            std::span<const LowRankDelta> deltas) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw input_error(folder.string(), "cannot create the folder: {}", code.message());
  std::vector<io::TensorView> tensors;
  for (const LowRankDelta& d : deltas) {
    const std::string path = module_path(d.id);
    const auto add = [&](const char* of, const io::Shape& shape, std::span<const float> values) {
      tensors.push_back({factor_name(path, of), DType::f32, shape, std::as_bytes(values)});
    };
    const auto in = static_cast<int64_t>(d.a.size()) / d.rank;
    const auto out = static_cast<int64_t>(d.b.size()) / d.rank;
    add(kFactorA, {d.rank, in}, d.a);
    add(kFactorB, {out, d.rank}, d.b);
    if (!d.magnitude.empty()) add(kFactorMagnitude, {out}, d.magnitude);
  }
  // Without the configuration there is no adapter: one that was here is gone before its tensors are
  // replaced, and the new one is there when they are.
  const std::filesystem::path config = folder / kPeftConfigFile;
  std::filesystem::remove(config, code);
  if (code) throw input_error(config.string(), "cannot replace the file: {}", code.message());
  io::write_safetensors(folder / kPeftTensorFile, tensors, {{"format", "pt"}}, io::kChecksumBlock);
  io::AtomicFile file(config);
  file.write(config_text(info, deltas));
  file.commit();
}

}  // namespace tandem::model
