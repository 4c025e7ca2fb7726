#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "model/adapters/low_rank_adapter.h"
#include "model/adapters/low_rank_format.h"

namespace tandem::model {
namespace {

/// A module of PEFT: a matrix, or several that the model's family stores in one tensor.
struct Module {
  std::string path;
  LowRankDelta delta;
  std::vector<float> a = {}, b = {}, magnitude = {};  // its numbers, of several matrices
};

/// Stacks A of the matrices and puts B along a diagonal of blocks: the product has each matrix's
/// change in its rows.
Module joined(const std::string& path, std::span<const LowRankDelta> parts,
              const ModelConfig& config) {
  Module m{.path = path, .delta = {.id = parts.front().id, .gamma = parts.front().gamma}};
  const auto out = static_cast<size_t>(stored_part(m.delta.id, config).shape[0]);
  for (const LowRankDelta& d : parts) {
    TANDEM_CHECK(d.gamma == m.delta.gamma, "{}: factors of gamma {} and {}", path, d.gamma,
                 m.delta.gamma);
    m.delta.rank += d.rank;
    m.a.insert(m.a.end(), d.a.begin(), d.a.end());
    m.magnitude.insert(m.magnitude.end(), d.magnitude.begin(), d.magnitude.end());
  }
  if (!m.magnitude.empty() && m.magnitude.size() != out)
    throw input_error(path, "has DoRA magnitudes of {} rows, expected {}", m.magnitude.size(), out)
        .hint("train all matrices of this tensor, or none");
  const auto rank = static_cast<size_t>(m.delta.rank);
  m.b.resize(out * rank);
  size_t column = 0;
  for (const LowRankDelta& d : parts) {
    const auto of = static_cast<size_t>(d.rank);
    auto row = static_cast<size_t>(stored_part(d.id, config).first);
    for (size_t i = 0; i < d.b.size(); i += of, ++row)
      std::copy_n(d.b.begin() + static_cast<ptrdiff_t>(i), of,
                  m.b.begin() + static_cast<ptrdiff_t>(row * rank + column));
    column += of;
  }
  m.delta.a = m.a;
  m.delta.b = m.b;
  m.delta.magnitude = m.magnitude;
  return m;
}

/// In the order of the first matrix of each.
std::deque<Module> modules_of(std::span<const LowRankDelta> deltas, const ModelConfig& config) {
  std::deque<Module> modules;
  std::map<std::string, std::vector<LowRankDelta>> fused;
  for (const LowRankDelta& d : deltas) {
    const std::string path = stored_module(d.id, config);
    std::vector<LowRankDelta>& parts = fused[path];
    if (parts.empty()) modules.push_back({.path = path, .delta = d});
    parts.push_back(d);
  }
  for (Module& m : modules)
    if (m.path != module_path(m.delta.id)) m = joined(m.path, fused[m.path], config);
  return modules;
}

/// Names of the modules that have factors: of the kinds given, or each by its path, so that PEFT
/// gives no other module factors.
std::vector<std::string> target_names(const LowRankInfo& info, const std::deque<Module>& modules,
                                      const ModelConfig& config) {
  std::vector<std::string> names;
  for (const Role w : info.targets) {
    const std::string path = stored_module({w, 0}, config);
    const std::string name = path.substr(path.rfind('.') + 1);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (info.targets.empty())
    for (const Module& m : modules) names.push_back(m.path);
  return names;
}

std::string config_text(const LowRankInfo& info, const std::deque<Module>& modules,
                        const ModelConfig& model) {
  // Of other ranks than most, with the same gamma.
  nlohmann::json ranks = nlohmann::json::object(), alphas = nlohmann::json::object();
  for (const auto& [path, d, a, b, magnitude] : modules)
    if (d.rank != info.rank) {
      const double share = static_cast<double>(d.rank) / static_cast<double>(info.rank);
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
                                 {"target_modules", target_names(info, modules, model)},
                                 {"task_type", "CAUSAL_LM"},
                                 {"use_dora", info.dora},
                                 {"use_rslora", info.rslora}};
  return config.dump(2) + "\n";
}

}  // namespace

void write_low_rank_adapter(const std::filesystem::path& folder, const LowRankInfo& info,
                            std::span<const LowRankDelta> deltas, const ModelConfig& model) {
  const std::deque<Module> modules = modules_of(deltas, model);
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw input_error(folder.string(), "cannot create the folder: {}", code.message());
  std::vector<io::TensorView> tensors;
  for (const Module& m : modules) {
    const LowRankDelta& d = m.delta;
    const auto add = [&](const char* of, const io::Shape& shape, std::span<const float> values) {
      tensors.push_back({factor_name(m.path, of), DType::f32, shape, std::as_bytes(values)});
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
  file.write(config_text(info, modules, model));
  file.commit();
}

}  // namespace tandem::model
