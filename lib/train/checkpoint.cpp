#include "train/checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"

namespace tandem::train {
namespace {

constexpr const char* kFormat = "tandem.checkpoint/2";
constexpr const char* kFormatKey = "format";
constexpr const char* kDoneKey = "done";       // steps of the run
constexpr const char* kStepsKey = "steps";     // of the optimizer
constexpr const char* kLastKey = "best.last";  // BestValidation
constexpr const char* kBestStepKey = "best.step";
constexpr const char* kBestLossKey = "best.loss";
constexpr const char* kWorseKey = "best.worse";
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

using Metadata = std::map<std::string, std::string>;

/// A value that was written as text, of which every bit comes back.
template <class T>
T number(const Metadata& metadata, const char* key, const std::filesystem::path& path) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) throw not_ours(path, fmt::format("'{}' is missing", key));
  const char *begin = it->second.data(), *end = begin + it->second.size();
  T value{};
  const auto [at, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || at != end || !std::isfinite(static_cast<double>(value)))
    throw not_ours(path, fmt::format("'{}' is '{}', expected a number", key, it->second));
  return value;
}

RunProgress progress_of(const Metadata& metadata, const std::filesystem::path& path) {
  if (const auto it = metadata.find(kFormatKey); it == metadata.end() || it->second != kFormat)
    throw not_ours(path, fmt::format("its format is {}, expected {}",
                                     it == metadata.end() ? "not named" : it->second, kFormat));
  const auto count = [&](const char* key) {
    const auto n = number<int64_t>(metadata, key, path);
    if (n < 0) throw not_ours(path, fmt::format("'{}' is {}, expected 0 or more", key, n));
    return n;
  };
  return {.done = count(kDoneKey),
          .best = {.last = count(kLastKey),
                   .step = count(kBestStepKey),
                   .loss = number<double>(metadata, kBestLossKey, path),
                   .worse = count(kWorseKey)}};
}

void check_identity(const Metadata& found, const RunIdentity& wanted,
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

void save_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                     const RunProgress& progress, const RunIdentity& identity) {
  Trainer::State& state = trainer.state();
  std::vector<io::TensorView> tensors;
  std::vector<std::vector<float>> copies;  // of a GPU's memory
  for (const Part& p : parts_of(state)) {
    std::span<const float> values = p.values;
    if (trainer.on_gpu()) values = copies.emplace_back(trainer.copy_of(values));
    tensors.push_back(
        {p.name, DType::f32, {static_cast<int64_t>(values.size())}, std::as_bytes(values)});
  }
  const BestValidation& best = progress.best;
  Metadata metadata = {{kFormatKey, kFormat},
                       {kDoneKey, std::to_string(progress.done)},
                       {kStepsKey, std::to_string(state.steps)},
                       {kLastKey, std::to_string(best.last)},
                       {kBestStepKey, std::to_string(best.step)},
                       {kBestLossKey, fmt::format("{}", best.loss)},
                       {kWorseKey, std::to_string(best.worse)}};
  for (const auto& [key, value] : identity) metadata[kRun + key] = value;
  io::write_safetensors(path, tensors, metadata);
}

RunProgress load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                            const RunIdentity& identity) {
  const io::Safetensors file = io::Safetensors::open(path);
  const RunProgress progress = progress_of(file.metadata(), path);
  check_identity(file.metadata(), identity, path);
  Trainer::State& state = trainer.state();
  const auto steps = number<int64_t>(file.metadata(), kStepsKey, path);
  for (const Part& p : parts_of(state)) {
    const io::TensorView t = file.tensor(p.name);
    if (t.dtype != DType::f32 || t.bytes.size() != p.values.size_bytes())
      throw not_ours(path, fmt::format("'{}' has {} bytes, expected {}", p.name, t.bytes.size(),
                                       p.values.size_bytes()));
  }
  for (const Part& p : parts_of(state)) {
    std::vector<float> values(p.values.size());
    std::memcpy(values.data(), file.tensor(p.name).bytes.data(), p.values.size_bytes());
    trainer.replace(p.values, values);
  }
  state.steps = steps;
  trainer.publish();
  return progress;
}

RunProgress checkpoint_progress(const std::filesystem::path& path) {
  return progress_of(io::Safetensors::open(path).metadata(), path);
}

}  // namespace tandem::train
