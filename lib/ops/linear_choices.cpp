#include "ops/linear_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/convert.h"
#include "io/cache_dir.h"
#include "io/file.h"
#include "io/json.h"

namespace tandem::ops {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

std::string in_words(const LinearProduct& p) {
  return fmt::format("{} rows={} out={} in={} y={} bias={:d} add={:d}{}{}", format_name(p.stored),
                     rows_bucket(p.rows), p.out, p.in, dtype_name(p.y_type), p.bias, p.accumulate,
                     !p.gate                 ? ""
                     : *p.gate == Gate::silu ? " swiglu"
                                             : " geglu",
                     p.by_input ? " by_input" : "");
}

std::string to_hex(const LinearChoice::Algorithm& a) {
  std::string text;
  for (const uint64_t word : a) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<LinearChoice::Algorithm> from_hex(const std::string& text) {
  constexpr size_t kDigits = 16;
  LinearChoice::Algorithm a{};
  if (text.size() != kDigits * a.size()) return std::nullopt;
  for (size_t i = 0; i < a.size(); ++i) {
    const char *begin = text.data() + i * kDigits, *end = begin + kDigits;
    const auto [at, error] = std::from_chars(begin, end, a[i], 16);
    if (error != std::errc{} || at != end) return std::nullopt;
  }
  return a;
}

io::Json to_json(const LinearChoice& c) {
  io::Json j = {{"microseconds", c.microseconds}};
  switch (c.kernel) {
    case LinearChoice::Kernel::skinny:
      j["skinny"] = c.stages;
      break;
    case LinearChoice::Kernel::tiled:
      j["tiled"] = {c.tiling.groups, c.tiling.parts, c.tiling.blocks};
      break;
    case LinearChoice::Kernel::channels:
      j["channels"] = true;
      break;
    case LinearChoice::Kernel::library:
      j["cublaslt"] = to_hex(c.algorithm);
  }
  return j;
}

bool is_small(const io::Json& j) {
  constexpr int kMost = 64;
  return j.is_number_integer() && j >= 0 && j <= kMost;
}

std::optional<LinearTiling> tiling_of(const io::Json& j) {
  if (!j.is_array() || j.size() != 3 || !std::ranges::all_of(j, is_small)) return std::nullopt;
  return LinearTiling{.groups = j[0], .parts = j[1], .blocks = j[2]};
}

std::optional<LinearChoice> from_json(const io::Json& j) {
  LinearChoice c;
  const auto end = j.end(), time = j.find("microseconds"), skinny = j.find("skinny"),
             tiled = j.find("tiled"), theirs = j.find("cublaslt");
  if (time != end && time->is_number()) c.microseconds = time->get<double>();
  if (skinny != end) {
    if (!is_small(*skinny)) return std::nullopt;
    c.kernel = LinearChoice::Kernel::skinny;
    c.stages = skinny->get<int>();
    return c;
  }
  if (tiled != end) {
    const auto tiling = tiling_of(*tiled);
    if (!tiling) return std::nullopt;
    c.kernel = LinearChoice::Kernel::tiled;
    c.tiling = *tiling;
    return c;
  }
  if (j.contains("channels")) {
    c.kernel = LinearChoice::Kernel::channels;
    return c;
  }
  if (theirs == end || !theirs->is_string()) return std::nullopt;
  const auto algorithm = from_hex(theirs->get<std::string>());
  if (!algorithm) return std::nullopt;
  c.algorithm = *algorithm;
  return c;
}

/// {machine: {product: choice}}; an empty object when absent or broken.
io::Json read(const std::filesystem::path& file) {
  try {
    io::Json j = io::parse_json(io::read_file(file, kMaxFileBytes), file.string());
    if (j.is_object()) return j;
  } catch (const std::exception&) {
    // What cannot be used is measured again.
  }
  return io::Json::object();
}

}  // namespace

int64_t rows_bucket(int64_t rows) {
  if (rows <= kSkinnyRows) return rows;
  int64_t bucket = kSkinnyRows;
  while (bucket < rows) bucket *= 2;
  return bucket;
}

LinearChoices::LinearChoices(std::filesystem::path file, std::string machine)
    : file_(std::move(file)), machine_(std::move(machine)) {
  const io::Json all = read(file_);
  const auto mine = all.find(machine_);
  if (mine == all.end() || !mine->is_object()) return;
  for (const auto& [product, entry] : mine->items())
    if (entry.is_object())
      if (const auto choice = from_json(entry)) choices_[product] = *choice;
}

std::optional<LinearChoice> LinearChoices::find(const LinearProduct& product) const {
  return find(in_words(product));
}

void LinearChoices::keep(const LinearProduct& product, const LinearChoice& choice) {
  keep(in_words(product), choice);
}

std::optional<LinearChoice> LinearChoices::find(const std::string& words) const {
  const auto it = choices_.find(words);
  if (it == choices_.end()) return std::nullopt;
  return it->second;
}

void LinearChoices::keep(const std::string& key, const LinearChoice& choice) {
  choices_[key] = choice;
  io::Json all = read(file_);
  if (!all[machine_].is_object()) all[machine_] = io::Json::object();
  all[machine_][key] = to_json(choice);
  io::keep(file_, all.dump(1) + "\n");
}

}  // namespace tandem::ops
