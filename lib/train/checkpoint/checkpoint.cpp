#include "train/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/crc32.h"
#include "base/error.h"
#include "base/parallel.h"
#include "io/safetensors.h"

namespace tandem::train {
namespace {

constexpr const char* kFormat = "tandem.checkpoint/3";
constexpr const char* kFormatKey = "format";
constexpr const char* kDoneKey = "done";       // steps of the run
constexpr const char* kStepsKey = "steps";     // of the optimizer
constexpr const char* kLastKey = "best.last";  // BestValidation
constexpr const char* kBestStepKey = "best.step";
constexpr const char* kBestLossKey = "best.loss";
constexpr const char* kWorseKey = "best.worse";
constexpr const char* kRateKey = "range_test.lr";  // of a run that had one
constexpr const char* kPlaceKey = "place";
constexpr const char* kRun = "run.";
constexpr const char* kChecksum = "crc32.";    // of a tensor
constexpr const char* kChecksumKey = "crc32";  // of all other metadata

/// A moment where the run has it.
struct Moment {
  const char* name;
  DType dtype;
  void* data;
  size_t n;

  size_t bytes() const { return n * dtype_bytes(dtype); }
};

std::array<Moment, 2> moments_of(Trainer::State& s) {
  const auto moment = [](const char* name, std::span<float> wide, std::span<bf16> narrow) {
    return narrow.empty() ? Moment{name, DType::f32, wide.data(), wide.size()}
                          : Moment{name, DType::bf16, narrow.data(), narrow.size()};
  };
  return {moment("first", s.first, s.narrow_first), moment("second", s.second, s.narrow_second)};
}

constexpr const char* kValues = "values";

Error not_ours(const std::filesystem::path& path, const std::string& why) {
  return input_error(path.string(), "expected a checkpoint of s2ft-train: {}", why)
      .hint("choose another output.path, or remove the file to begin again");
}

using Metadata = std::map<std::string, std::string>;

std::string hex(uint32_t crc) { return fmt::format("{:08x}", crc); }

/// CRC-32 of the CRCs of some bytes' MiBs, which threads compute.
class Checksum {
 public:
  static constexpr size_t kBlock = size_t{1} << 20;

  /// Of all calls but the last whole MiBs.
  void add(std::span<const std::byte> bytes) {
    const size_t first = crcs_.size();
    crcs_.resize(first + (bytes.size() + kBlock - 1) / kBlock);
    parallel_for(static_cast<int>(crcs_.size() - first), [&](int i) {
      const size_t begin = static_cast<size_t>(i) * kBlock;
      crcs_[first + static_cast<size_t>(i)] =
          crc32(bytes.subspan(begin, std::min(kBlock, bytes.size() - begin)));
    });
  }
  std::string text() const { return hex(crc32(std::as_bytes(std::span(crcs_)))); }

 private:
  std::vector<uint32_t> crcs_;
};

std::string checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.text();
}

/// Hands over numbers of the run: where they are, or of a GPU's memory in copies of some MiB.
void each_piece(const Trainer& trainer, const void* data, size_t bytes, const io::ByteSink& sink) {
  const std::span all(static_cast<const std::byte*>(data), bytes);
  if (!trainer.on_gpu()) return sink(all);
  constexpr size_t kPiece = 64 * Checksum::kBlock;
  for (size_t begin = 0; begin < bytes; begin += kPiece)
    sink(trainer.copy_of(all.subspan(begin, std::min(kPiece, bytes - begin))));
}

std::string checksum(const Metadata& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata)
    if (key != kChecksumKey) text += fmt::format("{}\n{}\n", key, value);
  return hex(crc32(std::as_bytes(std::span(text))));
}

std::string text_of(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? "missing" : it->second;
}

void check_sum(const std::filesystem::path& path, const Metadata& metadata, const std::string& key,
               const char* of, const std::string& found) {
  if (const std::string wanted = text_of(metadata, key); found != wanted)
    throw input_error(path.string(), "is damaged: the checksum of {} is {}, expected {}", of, found,
                      wanted)
        .hint(
            "the file was changed on disk or by a copy; --resume uses an older, intact checkpoint");
}

/// Every byte of the file is as it was written.
void check_whole(const std::filesystem::path& path, const io::Safetensors& file) {
  const Metadata& metadata = file.metadata();
  check_sum(path, metadata, kChecksumKey, "the metadata", checksum(metadata));
  for (const io::TensorEntry& entry : file.entries())
    check_sum(path, metadata, kChecksum + entry.name, entry.name.c_str(),
              checksum(file.tensor(entry).bytes));
}

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
                   .worse = count(kWorseKey)},
          .rate = metadata.contains(kRateKey) ? number<double>(metadata, kRateKey, path) : 0};
}

CheckpointInfo checked_info(const std::filesystem::path& path, const io::Safetensors& file,
                            std::optional<int64_t> step) {
  CheckpointInfo info{progress_of(file.metadata(), path), text_of(file.metadata(), kPlaceKey)};
  check_whole(path, file);
  if (step && info.progress.done != *step)
    throw input_error(path.string(), "holds step {}, expected step {} by its name",
                      info.progress.done, *step);
  return info;
}

void check_identity(const Metadata& found, const RunIdentity& wanted,
                    const std::filesystem::path& path) {
  std::map<std::string, std::string> then;
  for (const auto& [key, value] : found)
    if (key.starts_with(kRun)) then[key.substr(std::string_view(kRun).size())] = value;
  if (wanted.upgraded) then = wanted.upgraded(std::move(then));
  std::string differing;
  for (const auto& [key, value] : wanted.settings) {
    const auto it = then.find(key);
    if (it != then.end() && it->second == value) continue;
    differing += fmt::format("{}{} (now {}, then {})", differing.empty() ? "" : ", ", key, value,
                             it == then.end() ? "unknown" : it->second);
  }
  if (differing.empty()) return;
  throw usage_error("--resume", "{} belongs to another run: {}", path.string(), differing)
      .hint("set the earlier values, or another output.path");
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                     const RunProgress& progress, const RunIdentity& identity) {
  Trainer::State& state = trainer.state();
  const std::span<const float> values = trainer.placed_values();
  std::array<Moment, 2> moments = moments_of(state);
  std::array<std::vector<float>, 2> whole;  // of several ranks
  if (trainer.spec().divides_moments()) {
    whole = {trainer.moments_of_all(state.first), trainer.moments_of_all(state.second)};
    for (size_t i = 0; i < whole.size(); ++i)
      moments[i] = {moments[i].name, DType::f32, whole[i].data(), whole[i].size()};
  }
  if (!trainer.writes()) return;
  const auto shape = [](size_t n) { return io::Shape{static_cast<int64_t>(n)}; };
  std::vector<io::TensorView> tensors = {{kValues, DType::f32, shape(values.size()), {}}};
  for (const Moment& m : moments) tensors.push_back({m.name, m.dtype, shape(m.n), {}});
  const auto write = [&](size_t i, const io::ByteSink& sink) {
    if (i == 0)
      each_piece(trainer, values.data(), values.size_bytes(), sink);
    else if (const Moment& m = moments[i - 1]; whole[i - 1].empty())
      each_piece(trainer, m.data, m.bytes(), sink);
    else
      sink(std::as_bytes(std::span(whole[i - 1])));
  };
  const BestValidation& best = progress.best;
  Metadata metadata = {{kFormatKey, kFormat},
                       {kDoneKey, std::to_string(progress.done)},
                       {kStepsKey, std::to_string(state.steps)},
                       {kLastKey, std::to_string(best.last)},
                       {kBestStepKey, std::to_string(best.step)},
                       {kBestLossKey, fmt::format("{}", best.loss)},
                       {kWorseKey, std::to_string(best.worse)},
                       {kPlaceKey, identity.place}};
  if (progress.rate > 0) metadata[kRateKey] = fmt::format("{}", progress.rate);
  for (const auto& [key, value] : identity.settings) metadata[kRun + key] = value;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Checksum sum;
    write(i, [&](std::span<const std::byte> bytes) { sum.add(bytes); });
    metadata[kChecksum + tensors[i].name] = sum.text();
  }
  metadata[kChecksumKey] = checksum(metadata);
  io::write_safetensors(path, tensors, metadata, write);
}

CheckpointInfo load_checkpoint(const std::filesystem::path& path, Trainer& trainer,
                               const RunIdentity& identity, std::optional<int64_t> step) {
  const io::Safetensors file = io::Safetensors::open(path);
  const CheckpointInfo info = checked_info(path, file, step);
  check_identity(file.metadata(), identity, path);
  Trainer::State& state = trainer.state();
  const auto steps = number<int64_t>(file.metadata(), kStepsKey, path);
  const auto tensor = [&](const char* name, DType dtype, size_t bytes) {
    const io::TensorView t = file.tensor(name);
    if (t.dtype != dtype || t.bytes.size() != bytes)
      throw not_ours(path,
                     fmt::format("'{}' has {} bytes of {}, expected {} bytes of {}", name,
                                 t.bytes.size(), dtype_name(t.dtype), bytes, dtype_name(dtype)));
    return t.bytes;
  };
  const auto n = static_cast<size_t>(trainer.set().size);
  const std::span<const std::byte> stored = tensor(kValues, DType::f32, n * sizeof(float));
  const std::array<Moment, 2> moments = moments_of(state);
  const auto whole_moment = [&](const Moment& m) {
    return tensor(m.name, m.dtype, n * dtype_bytes(m.dtype));
  };
  for (const Moment& m : moments) (void)whole_moment(m);
  std::vector<float> values(n);  // aligned
  std::memcpy(values.data(), stored.data(), stored.size());
  trainer.set_values(values);
  for (const Moment& m : moments)
    trainer.replace(m.data, whole_moment(m).data() + trainer.own_first() * dtype_bytes(m.dtype),
                    m.bytes());
  state.steps = steps;
  return info;
}

CheckpointInfo check_checkpoint(const std::filesystem::path& path, std::optional<int64_t> step) {
  return checked_info(path, io::Safetensors::open(path), step);
}

}  // namespace tandem::train
