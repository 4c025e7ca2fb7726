#include "model/adapters/adapter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/convert.h"
#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/adapters/adapter_format.h"
#include "model/weights/weight_source.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

/// Values are read in pieces of this size, which are whole blocks with checksums.
constexpr size_t kReadBytes = 4 * io::kChecksumBlock;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

constexpr const char* kDamagedHint = "the file is damaged: copy it again, or train it again";

/// Error of a file whose contents are not what an adapter has.
template <class... Args>
Error damaged(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::input, where, text, fmt::make_format_args(args...))
      .hint(kDamagedHint);
}

using Metadata = std::map<std::string, std::string>;

std::string value_of(const Metadata& metadata, const char* key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

void check_metadata(const Metadata& metadata, const std::string& where, const AdapterBase& base,
                    OtherBase other) {
  const auto value = [&](const char* key) { return value_of(metadata, key); };
  if (value(kAdapterFormatKey) != kAdapterFormat)
    throw input_error(where, "is not an s2ft adapter: its format is {}, expected '{}'",
                      io::quote(value(kAdapterFormatKey)), kAdapterFormat)
        .hint("give an s2ft-train run, its folder adapter/, or a LoRA or DoRA folder from PEFT");
  if (value(kAdapterVersionKey) != kAdapterVersion)
    throw input_error(where, "has format version {}, this build reads version {}",
                      io::quote(value(kAdapterVersionKey)), kAdapterVersion)
        .hint("update tandem");
  if (value(kAdapterModeKey) != kAdapterMode)
    throw input_error(where, "stores values in mode {}, this build reads mode '{}'",
                      io::quote(value(kAdapterModeKey)), kAdapterMode)
        .hint("store the new weights, not their differences");
  if (const std::string found = value(kAdapterFingerprintKey);
      found != base.fingerprint && other == OtherBase::refused)
    throw input_error(where, "was trained on model {} (fingerprint {}), the model is {} ({})",
                      io::quote(value(kAdapterBaseKey)), io::quote(found), io::quote(base.name),
                      io::quote(base.fingerprint))
        .hint(
            "set model.path to the model that was trained, or skip this check with force: true in "
            "model.adapters or s2ft-adapter --force");
}

/// The two files must be of one adapter.
void check_config(const fs::path& path, const Metadata& metadata) {
  const std::string where = path.string();
  const io::Json config = io::parse_json(io::read_regular_file(path, kMaxConfigBytes), where);
  if (!config.is_object())
    throw damaged(where, "expected an object, found {}", io::describe(config));
  for (const char* key : kAdapterSharedKeys)
    if (const std::string& said = io::get_string(config, key, where);
        said != value_of(metadata, key))
      throw damaged(where, "'{}' is {}, but {} in {}", key, io::quote(said),
                    io::quote(value_of(metadata, key)), kAdapterTensorFile);
  for (const char* key : kAdapterNotedKeys) {
    const auto noted = metadata.find(key);
    if (noted == metadata.end()) continue;
    const std::string found = config.contains(key) ? io::describe(config[key]) : "missing";
    // Metadata are text, which objects are written as.
    io::Json wanted = io::Json::parse(noted->second, nullptr, false);
    if (wanted.is_discarded()) wanted = noted->second;
    if (!config.contains(key) || config[key] != wanted)
      throw damaged(where, "'{}' is {}, which differs from {}", key, found, kAdapterTensorFile);
  }
}

void check_index(const std::vector<int32_t>& index, int64_t features, int unit,
                 const std::string& name, const std::string& where) {
  if (index.empty() || static_cast<int64_t>(index.size()) > features)
    throw damaged(where, "{} names {} features, expected 1 to {}", name, index.size(), features);
  for (size_t i = 0; i < index.size(); ++i) {
    const int32_t at = index[i];
    if (at < 0 || at >= features)
      throw damaged(where, "{} names feature {}, expected 0 to {}", name, at, features - 1);
    if (i > 0 && at <= index[i - 1])
      throw damaged(where,
                    "{} names feature {} after {}, expected ascending features without repeats",
                    name, at, index[i - 1]);
    const size_t within = i % static_cast<size_t>(unit);
    const bool whole = within == 0 ? at % unit == 0 : at == index[i - 1] + 1;
    if (!whole || (within + 1 < static_cast<size_t>(unit) && i + 1 == index.size()))
      throw damaged(where, "{} has only a part of head {}, expected all {} features", name,
                    index[i - within] / unit, unit);
  }
}

/// Copies a row's values of the columns in `index`.
template <class T>
void scatter(T* row, const std::vector<int32_t>& index, const std::byte* values) {
  for (size_t i = 0; i < index.size(); ++i)
    std::memcpy(row + index[i], values + i * sizeof(T), sizeof(T));
}

}  // namespace

fs::path adapter_folder(const fs::path& path) {
  const fs::path within = path / kRunAdapterFolder;
  return !fs::exists(path / kAdapterConfigFile) && fs::is_directory(within) ? within : path;
}

Adapter Adapter::open(const fs::path& folder, const ModelConfig& config, const AdapterBase& base,
                      OtherBase other) {
  if (!fs::is_directory(folder))
    throw input_error(folder.string(), "no such adapter folder")
        .hint("give the folder adapter/ of an s2ft-train run");
  for (const char* file : {kAdapterConfigFile, kAdapterTensorFile})
    if (!fs::exists(folder / file))
      throw input_error((folder / file).string(), "is missing")
          .hint("give the folder adapter/ of a finished s2ft-train run");
  Adapter adapter(io::Safetensors::open(folder / kAdapterTensorFile), config, base, other);
  adapter.check_any();
  check_config(folder / kAdapterConfigFile, adapter.file_.metadata());
  return adapter;
}

Adapter Adapter::parse(io::Safetensors file, const ModelConfig& config, const AdapterBase& base) {
  Adapter adapter = parse_part(std::move(file), config, base);
  adapter.check_any();
  return adapter;
}

Adapter Adapter::parse_part(io::Safetensors file, const ModelConfig& config,
                            const AdapterBase& base) {
  return {std::move(file), config, base, OtherBase::refused};
}

void Adapter::check_any() const {
  if (slices_.empty()) throw damaged(file_.where(), "holds no values");
}

Adapter::Adapter(io::Safetensors file, const ModelConfig& config, const AdapterBase& base,
                 OtherBase other)
    : file_(std::move(file)) {
  const std::string& where = file_.where();
  check_metadata(file_.metadata(), where, base, other);
  std::set<std::string, std::less<>> known;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role weight : kLayerRoles) {
      const std::string prefix = adapter_prefix({weight, layer});
      const std::string index_name = prefix + "index", value_name = prefix + "value";
      const io::TensorEntry *index = file_.find(index_name), *value = file_.find(value_name);
      if (index == nullptr && value == nullptr) continue;
      if (index == nullptr || value == nullptr)
        throw damaged(where, "'{}' is missing", index == nullptr ? index_name : value_name);
      const io::Shape shape = shape_of(weight, config);
      Slice slice{.index = read_index(*index), .values = {}, .in = shape[1]};
      const bool columns = ends_in_stream(weight);
      check_index(slice.index, shape[columns ? 1 : 0], unit_features(weight, config), index_name,
                  where);
      const auto n = static_cast<int64_t>(slice.index.size());
      const io::Shape expected = columns ? io::Shape{shape[0], n} : io::Shape{n, shape[1]};
      if (value->shape != expected || (value->dtype != "F32" && value->dtype != "BF16"))
        throw input_error(where, "'{}' is {} {}, expected F32 or BF16 {}", value_name,
                          io::quote(value->dtype), io::shape_text(value->shape),
                          io::shape_text(expected))
            .hint(value->shape != expected
                      ? "set model.path to the adapter's base model; if it is, the file is damaged"
                      : kDamagedHint);
      slice.values = file_.tensor(*value);
      check_values(slice.values);
      slices_.emplace(MatrixId{weight, layer}, std::move(slice));
      known.insert({index_name, value_name});
    }
  for (const io::TensorEntry& entry : file_.entries())
    if (!known.contains(entry.name))
      throw damaged(where, "tensor {} belongs to no matrix of {} that an adapter can change",
                    io::quote(entry.name), io::quote(base.name));
}

std::vector<int32_t> Adapter::read_index(const io::TensorEntry& entry) const {
  if (entry.dtype != "I32" || entry.shape.size() != 1)
    throw damaged(file_.where(), "'{}' is {} {}, expected one-dimensional I32", entry.name,
                  io::quote(entry.dtype), io::shape_text(entry.shape));
  std::vector<int32_t> index(static_cast<size_t>(entry.shape[0]));
  file_.read(file_.tensor(entry), 0, std::as_writable_bytes(std::span(index)));
  return index;
}

void Adapter::check_values(const io::TensorView& values) const {
  const auto n = static_cast<int64_t>(values.bytes.size() / dtype_bytes(values.dtype));
  const auto most = static_cast<int64_t>(kReadBytes / sizeof(float));
  for (int64_t first = 0; first < n; first += most) {
    const auto piece = stored_in(file_, values, most).values(first, std::min(n, first + most));
    const auto bad = std::ranges::find_if(piece, [](float x) { return !std::isfinite(x); });
    if (bad != piece.end())
      throw damaged(file_.where(), "value {} of '{}' is {}, expected a finite number",
                    first + (bad - piece.begin()), values.name, *bad);
  }
}

void Adapter::numbers(const io::TensorView& values, int64_t first, int64_t n, DType dtype,
                      std::vector<std::byte>& out) const {
  out.resize(static_cast<size_t>(n) * dtype_bytes(dtype));
  stored_in(file_, values, n).read(first, first + n, dtype, out.data());
}

AdapterInfo Adapter::info() const {
  const auto value = [&](const char* key) { return value_of(file_.metadata(), key); };
  AdapterInfo info{.format = value(kAdapterFormatKey),
                   .base = {value(kAdapterBaseKey), value(kAdapterFingerprintKey)},
                   .selection = value(kAdapterSelectionKey)};
  const std::string steps = value(kAdapterStepsKey);
  std::from_chars(steps.data(), steps.data() + steps.size(), info.steps);
  return info;
}

std::span<const int32_t> Adapter::index(MatrixId id) const {
  const auto it = slices_.find(id);
  if (it == slices_.end()) return {};
  return it->second.index;
}

std::vector<float> Adapter::values(MatrixId id) const {
  const auto it = slices_.find(id);
  if (it == slices_.end()) return {};
  const io::TensorView& stored = it->second.values;
  const int64_t n = stored.shape[0] * stored.shape[1];
  return stored_in(file_, stored, n).values(0, n);
}

template <class Visit>
void Adapter::each_row(const Slice& s, bool columns, int64_t begin, int64_t end, DType dtype,
                       const Visit& visit) const {
  std::vector<std::byte> piece;
  if (!columns) {
    const auto first = std::ranges::lower_bound(s.index, begin);
    for (auto i = first; i != s.index.end() && *i < end; ++i) {
      numbers(s.values, (i - s.index.begin()) * s.in, s.in, dtype, piece);
      visit(int64_t{*i}, piece.data());
    }
    return;
  }
  const auto n = static_cast<int64_t>(s.index.size());
  const int64_t most =
      std::max<int64_t>(1, static_cast<int64_t>(kReadBytes / sizeof(float)) / n);  // rows a piece
  for (int64_t row = begin; row < end; row += most) {
    const int64_t last = std::min(end, row + most);
    numbers(s.values, row * n, (last - row) * n, dtype, piece);
    for (int64_t r = row; r < last; ++r)
      visit(r, piece.data() + static_cast<size_t>((r - row) * n) * dtype_bytes(dtype));
  }
}

void Adapter::replace(MatrixId id, int64_t begin, int64_t end, DType dtype, void* rows) const {
  const auto it = slices_.find(id);
  if (it == slices_.end()) return;
  const Slice& s = it->second;
  const size_t row_bytes = static_cast<size_t>(s.in) * dtype_bytes(dtype);
  auto* to = static_cast<std::byte*>(rows);
  each_row(s, ends_in_stream(id.role), begin, end, dtype, [&](int64_t r, const std::byte* values) {
    std::byte* const row = to + static_cast<size_t>(r - begin) * row_bytes;
    if (!ends_in_stream(id.role))
      std::memcpy(row, values, row_bytes);
    else if (dtype == DType::f32)
      scatter(reinterpret_cast<float*>(row), s.index, values);
    else
      scatter(reinterpret_cast<bf16*>(row), s.index, values);
  });
}

void Adapter::add(MatrixId id, int64_t begin, int64_t end, float by,
                  std::span<const uint32_t> changes, std::span<const float> base,
                  std::span<float> rows) const {
  const auto it = slices_.find(id);
  if (it == slices_.end()) return;
  const Slice& s = it->second;
  const auto put = [&](int64_t at, int32_t feature, const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    const auto i = static_cast<size_t>(at);
    if (by == 1 && changes[static_cast<size_t>(feature)] == 1)
      rows[i] = value;
    else
      rows[i] += by * (value - base[i]);
  };
  const bool columns = ends_in_stream(id.role);
  each_row(s, columns, begin, end, DType::f32, [&](int64_t r, const std::byte* values) {
    const int64_t first = (r - begin) * s.in;
    const int64_t n = columns ? static_cast<int64_t>(s.index.size()) : s.in;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t column = columns ? s.index[static_cast<size_t>(i)] : static_cast<int32_t>(i);
      put(first + column, columns ? column : static_cast<int32_t>(r),
          values + static_cast<size_t>(i) * sizeof(float));
    }
  });
}

}  // namespace tandem::model
