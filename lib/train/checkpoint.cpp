#include "train/checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"

namespace tandem::train {
namespace {

constexpr const char* kFormat = "tandem.checkpoint/1";
constexpr const char* kFormatKey = "format";
constexpr const char* kDoneKey = "done";    // steps of the run
constexpr const char* kStepsKey = "steps";  // of the optimizer
constexpr const char* kRun = "run.";

struct Part {
  const char* name;
  std::span<float> values;
};

std::array<Part, 3> parts_of(Trainer::State& state) {
  return {{{"values", state.values}, {"first", state.first}, {"second", state.second}}};
}

Error not_ours(const std::filesystem::path& path, const std::string& why) {
  return input_error(path.string(), "is no checkpoint of s2ft-train: {}", why)
      .hint("choose another output.path, or remove the file to begin again");
}

void check_identity(const std::map<std::string, std::string>& found, const RunIdentity& wanted,
                    const std::filesystem::path& path) {
  std::string differing;
  for (const auto& [key, value] : wanted) {
    const auto it = found.find(kRun + key);
    if (it != found.end() && it->second == value) continue;
    differing += fmt::format("{}{} (now {}, then {})", differing.empty() ? "" : ", ", key, value,
                             it == found.end() ? "unknown" : it->second);
  }
  if (differing.empty()) return;
  throw usage_error("--resume", "{} is of another run: {}", path.string(), differing)
      .hint("give the values of then, or another output.path");
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, Trainer& trainer, int64_t done,
                     const RunIdentity& identity) {
  Trainer::State& state = trainer.state();
  std::vector<io::TensorView> tensors;
  for (const Part& p : parts_of(state))
    tensors.push_back({p.name,
                       DType::f32,
                       {static_cast<int64_t>(p.values.size())},
                       std::as_bytes(std::span<const float>(p.values))});
  std::map<std::string, std::string> metadata = {{kFormatKey, kFormat},
                                                 {kDoneKey, std::to_string(done)},
                                                 {kStepsKey, std::to_string(state.steps)}};
  for (const auto& [key, value] : identity) metadata[kRun + key] = value;
  io::write_safetensors(path, tensors, metadata);
}

int64_t load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                        const RunIdentity& identity) {
  const io::Safetensors file = io::Safetensors::open(path);
  const auto& metadata = file.metadata();
  if (const auto it = metadata.find(kFormatKey); it == metadata.end() || it->second != kFormat)
    throw not_ours(path, fmt::format("its format is not {}", kFormat));
  check_identity(metadata, identity, path);
  Trainer::State& state = trainer.state();
  const auto number = [&](const char* key) {
    int64_t n = -1;
    if (const auto it = metadata.find(key); it != metadata.end())
      std::from_chars(it->second.data(), it->second.data() + it->second.size(), n);
    if (n < 0) throw not_ours(path, fmt::format("it has no number '{}'", key));
    return n;
  };
  const int64_t done = number(kDoneKey), steps = number(kStepsKey);
  for (const Part& p : parts_of(state)) {
    const io::TensorView t = file.tensor(p.name);
    if (t.dtype != DType::f32 || t.bytes.size() != p.values.size_bytes())
      throw not_ours(path, fmt::format("'{}' has {} bytes, expected {}", p.name, t.bytes.size(),
                                       p.values.size_bytes()));
  }
  for (const Part& p : parts_of(state))
    std::memcpy(p.values.data(), file.tensor(p.name).bytes.data(), p.values.size_bytes());
  state.steps = steps;
  trainer.publish();
  return done;
}

}  // namespace tandem::train
