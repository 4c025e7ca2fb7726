#include "model/adapters/low_rank_adapter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "io/quote.h"
#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_config.h"
#include "model/adapters/low_rank_format.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

/// Values are checked in pieces of this many, which are whole blocks with checksums.
constexpr int64_t kPiece = io::kChecksumBlock;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

constexpr const char* kDamagedHint =
    "the file is damaged, or belongs to another model: copy it again, or set model.path to its "
    "base model";

template <class... Args>
Error damaged(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return Error::formatted(ErrorKind::input, where, text, fmt::make_format_args(args...))
      .hint(kDamagedHint);
}

}  // namespace

bool LowRankAdapter::is_at(const fs::path& folder) {
  return fs::exists(folder / kPeftConfigFile) || fs::exists(folder / kPeftTensorFile) ||
         fs::exists(folder / kPeftPickleFile);
}

LowRankAdapter LowRankAdapter::open(const fs::path& folder, const ModelConfig& config) {
  if (!fs::exists(folder / kPeftTensorFile) && fs::exists(folder / kPeftPickleFile))
    throw input_error((folder / kPeftPickleFile).string(),
                      "is pickled, and reading it could run any program; expected {}",
                      kPeftTensorFile)
        .hint("load it with PEFT and save it again with save_pretrained(safe_serialization=True)");
  for (const char* file : {kPeftConfigFile, kPeftTensorFile})
    if (!fs::exists(folder / file))
      throw input_error((folder / file).string(), "is missing")
          .hint("name the folder that PEFT's save_pretrained, or a run of s2ft-train, has written");
  return {io::Safetensors::open(folder / kPeftTensorFile), (folder / kPeftConfigFile).string(),
          io::read_regular_file(folder / kPeftConfigFile, kMaxConfigBytes), config};
}

LowRankAdapter LowRankAdapter::parse(io::Safetensors file, std::string_view config_text,
                                     const ModelConfig& config) {
  const std::string where = file.where();
  return {std::move(file), where, config_text, config};
}

LowRankAdapter::LowRankAdapter(io::Safetensors file, const std::string& where,
                               std::string_view config_text, const ModelConfig& config)
    : file_(std::move(file)) {
  const LowRankConfig said = parse_low_rank_config(config_text, where, config);
  scales_rows_ = said.magnitudes;
  std::set<std::string, std::less<>> known;
  for (const auto& [place, module] : said.modules) {
    const auto& [weight, layer] = place;
    const io::Shape shape = weight_shape(weight, config);
    const std::string path = module_path(weight, layer);
    const auto take = [&](const char* of, const io::Shape& expected) {
      const std::string name = factor_name(path, of);
      known.insert(name);
      return tensor(name, expected);
    };
    Matrix m{.a = take(kFactorA, {module.rank, shape[1]}),
             .b = take(kFactorB, {shape[0], module.rank}),
             .magnitude = {},
             .rank = module.rank,
             .gamma = module.gamma};
    if (said.magnitudes) m.magnitude = take(kFactorMagnitude, {shape[0]});
    matrices_.emplace(place, std::move(m));
  }
  for (const io::TensorEntry& entry : file_.entries())
    if (!known.contains(entry.name))
      throw damaged(file_.where(), "tensor {} is of no matrix that {} names", io::quote(entry.name),
                    kPeftConfigFile);
}

io::TensorView LowRankAdapter::tensor(const std::string& name, const io::Shape& shape) const {
  const io::TensorEntry* const entry = file_.find(name);
  if (entry == nullptr) throw damaged(file_.where(), "'{}' is missing", name);
  if (entry->shape != shape ||
      (entry->dtype != "F32" && entry->dtype != "BF16" && entry->dtype != "F16"))
    throw damaged(file_.where(), "'{}' is {} {}, expected F32, BF16 or F16 {}", name,
                  io::quote(entry->dtype), io::shape_text(entry->shape), io::shape_text(shape));
  const io::TensorView view = file_.tensor(*entry);
  check_values(view);
  return view;
}

void LowRankAdapter::check_values(const io::TensorView& t) const {
  const auto n = static_cast<int64_t>(t.bytes.size() / dtype_bytes(t.dtype));
  for (int64_t first = 0; first < n; first += kPiece) {
    const std::vector<float> piece = numbers(t, first, std::min(kPiece, n - first));
    const auto bad = std::ranges::find_if(piece, [](float x) { return !std::isfinite(x); });
    if (bad != piece.end())
      throw damaged(file_.where(), "value {} of '{}' is {}, expected a finite number",
                    first + (bad - piece.begin()), t.name, *bad);
  }
}

std::vector<float> LowRankAdapter::numbers(const io::TensorView& t, int64_t first,
                                           int64_t n) const {
  const size_t size = dtype_bytes(t.dtype);
  std::vector<float> values(static_cast<size_t>(n));
  std::vector<std::byte> stored(values.size() * size);
  file_.read(t, static_cast<size_t>(first) * size, stored);
  ops::convert(values.data(), DType::f32, stored.data(), t.dtype, n);
  return values;
}

std::vector<float> LowRankAdapter::all(const io::TensorView& t) const {
  if (t.shape.empty()) return {};
  return numbers(t, 0, static_cast<int64_t>(t.bytes.size() / dtype_bytes(t.dtype)));
}

std::vector<float> LowRankAdapter::first_factor(Weight weight, int layer) const {
  return all(matrices_.at({weight, layer}).a);
}

std::vector<float> LowRankAdapter::second_factor(Weight weight, int layer) const {
  return all(matrices_.at({weight, layer}).b);
}

std::vector<float> LowRankAdapter::magnitudes(Weight weight, int layer) const {
  return all(matrices_.at({weight, layer}).magnitude);
}

void LowRankAdapter::merge(Weight weight, int layer, int64_t begin, int64_t end,
                           std::span<float> rows, float by) const {
  const auto it = matrices_.find({weight, layer});
  if (it == matrices_.end()) return;
  const Matrix& m = it->second;
  const std::vector<float> a = numbers(m.a, 0, m.rank * m.a.shape[1]);
  const std::vector<float> b = numbers(m.b, begin * m.rank, (end - begin) * m.rank);
  std::vector<float> magnitude;
  if (!m.magnitude.shape.empty()) magnitude = numbers(m.magnitude, begin, end - begin);
  merge_low_rank(rows, {.weight = weight,
                        .layer = layer,
                        .rank = m.rank,
                        .gamma = by * m.gamma,
                        .a = a,
                        .b = b,
                        .magnitude = magnitude});
}

}  // namespace tandem::model
