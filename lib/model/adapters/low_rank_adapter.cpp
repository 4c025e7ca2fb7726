#include "model/adapters/low_rank_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/quote.h"
#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_config.h"
#include "model/adapters/low_rank_format.h"
#include "model/weights/weight_source.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

/// Values are checked in pieces of this many, which are whole blocks with checksums.
constexpr int64_t kReadAtOnce = io::kChecksumBlock;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

constexpr const char* kOtherModelHint =
    "set model.path to the base model that the adapter was trained on, or save the adapter again "
    "with PEFT";

template <class... Args>
Error unfit(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::input, where, text, fmt::make_format_args(args...))
      .hint(kOtherModelHint);
}

bool is_outside(Role weight) { return weight == Role::embedding || weight == Role::head; }

int64_t count(const io::TensorView& t) {
  return static_cast<int64_t>(t.bytes.size() / dtype_bytes(t.dtype));
}

}  // namespace

bool LowRankAdapter::is_at(const fs::path& folder) {
  return fs::exists(folder / kPeftConfigFile) || fs::exists(folder / kPeftTensorFile) ||
         fs::exists(folder / kPeftPickleFile);
}

LowRankAdapter LowRankAdapter::open(const fs::path& folder, const ModelConfig& config) {
  if (!fs::exists(folder / kPeftTensorFile) && fs::exists(folder / kPeftPickleFile))
    throw input_error((folder / kPeftPickleFile).string(),
                      "is a pickle file, which could run code when read; expected {}",
                      kPeftTensorFile)
        .hint("load it with PEFT and save it again with save_pretrained(safe_serialization=True)");
  for (const char* file : {kPeftConfigFile, kPeftTensorFile})
    if (!fs::exists(folder / file))
      throw input_error((folder / file).string(), "is missing")
          .hint("give a folder from PEFT's save_pretrained or from an s2ft-train run");
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
    : file_(std::move(file)), tied_(config.head.tied) {
  const LowRankConfig said = parse_low_rank_config(config_text, where, config);
  scales_rows_ = said.magnitudes;
  warnings_ = said.warnings;
  add_factors(said, config);
  for (const MatrixId& id : all_matrices(config)) add_replacement(id, said, config);
  // PEFT names the head also in a model that ties it.
  if (tied_) add_replacement({Role::head}, said, config);
  add_tokens(said, config);
  if (tied_) tie(said);
  drop_unchanged();
  warn_unused(where);
}

void LowRankAdapter::add_factors(const LowRankConfig& said, const ModelConfig& config) {
  std::vector<std::string> without;
  for (const auto& [place, module] : said.modules) {
    if (!has_factors(place, said)) {
      without.push_back(module.path);
      continue;
    }
    const io::Shape shape = shape_of(place.role, config);
    const bool fused = module.path != module_path(place);
    const StoredPart part =
        fused ? stored_part(place, config) : StoredPart{.tensor = {}, .first = 0, .shape = shape};
    const auto take = [&](const char* of, const io::Shape& expected) {
      return tensor(factor_name(module.path, of), expected);
    };
    const auto rows = [&](const io::TensorView& t) { return io::rows_of(t, part.first, shape[0]); };
    Change& c = changes_[place];
    c.rank = module.rank;
    c.gamma = module.gamma;
    if (place.role == Role::embedding) {
      c.a = take(kEmbeddingB, {shape[1], module.rank});
      c.b = take(kEmbeddingA, {module.rank, shape[0]});
      const std::vector<float> columns = all(c.a);
      for (int64_t k = 0; k < c.rank; ++k)
        for (int64_t i = 0; i < shape[1]; ++i)
          embedding_factor_.push_back(columns[static_cast<size_t>(i * c.rank + k)]);
      continue;
    }
    c.a = take(kFactorA, {module.rank, shape[1]});
    c.b = rows(take(kFactorB, {part.shape[0], module.rank}));
    if (said.magnitudes) c.magnitude = rows(take(kFactorMagnitude, {part.shape[0]}));
    if (said.biases) add_bias(place, said, config);
  }
  if (without.empty()) return;
  if (without.size() == said.modules.size())
    throw unfit(file_.where(), "has no LoRA factors for {} or any other target module",
                without.front());
  warnings_.push_back(
      fmt::format("{}: no factors for {}{}, which stay unchanged", file_.where(), without.front(),
                  without.size() == 1 ? "" : fmt::format(" and {} more", without.size() - 1)));
}

bool LowRankAdapter::has_factors(MatrixId place, const LowRankConfig& said) const {
  const std::string& path = said.modules.at(place).path;
  const bool embedding = place.role == Role::embedding;
  std::vector<const char*> names = {embedding ? kEmbeddingA : kFactorA,
                                    embedding ? kEmbeddingB : kFactorB};
  if (said.magnitudes) names.push_back(kFactorMagnitude);
  return std::ranges::any_of(
      names, [&](const char* name) { return file_.find(factor_name(path, name)) != nullptr; });
}

void LowRankAdapter::add_bias(MatrixId place, const LowRankConfig& said,
                              const ModelConfig& config) {
  const std::string& path = said.modules.at(place).path;
  for (const Role bias : layer_roles(config))
    if (in_layers(place.role) && canonical_name({bias, place.layer}) == path + ".bias") {
      Change& c = changes_[{bias, place.layer}];
      c.added = tensor(factor_name(path, kBiasB), shape_of(bias, config));
      c.gamma = said.modules.at(place).gamma;
      return;
    }
  throw unfit(file_.where(), "'lora_bias' adds a bias to {}, which has none in this model", path)
      .hint("train the adapter without lora_bias: this model has no biases to merge into");
}

void LowRankAdapter::add_replacement(MatrixId id, const LowRankConfig& said,
                                     const ModelConfig& config) {
  const StoredPart part = stored_part(id, config);
  const std::string path = stored_module(id, config), suffix = part.tensor.substr(path.size() + 1);
  const auto matrix =
      std::ranges::find_if(said.modules, [&](const auto& m) { return m.second.path == path; });
  // PEFT's name of the parameter, which lies within the module that it puts around the base's.
  const char* const within = matrix != said.modules.end() ? "base_layer."
                             : is_outside(id.role) && said.tokens.contains(id.role)
                                 ? "token_adapter.base_layer."
                                 : "";
  const std::string name = factor_name(path, (within + suffix).c_str());
  const io::TensorEntry* const entry = file_.find(name);
  if (entry == nullptr && !said.saves(path)) return;
  const io::Shape shape = shape_of(id.role, config);
  if (entry != nullptr && is_outside(id.role) && entry->shape.size() == 2 &&
      entry->shape[1] == shape[1] && entry->shape[0] != shape[0])
    throw unfit(file_.where(), "'{}' has {} rows, the model has {}", name, entry->shape[0],
                shape[0])
        .hint(fmt::format("training resized the vocabulary: resize the base model with "
                          "resize_token_embeddings({}), save it, and set model.path to it",
                          entry->shape[0]));
  changes_[id].replaced = io::rows_of(tensor(name, part.shape), part.first, shape[0]);
}

void LowRankAdapter::add_tokens(const LowRankConfig& said, const ModelConfig& config) {
  for (const auto& [weight, ids] : said.tokens) {
    const std::string name = factor_name(module_path({weight}), kTokenRows);
    Change& c = changes_[{weight}];
    if (c.rank > 0)
      throw unfit(file_.where(), "{} is in both 'trainable_token_indices' and 'target_modules'",
                  module_path({weight}));
    c.tokens = tensor(name, {std::ssize(ids), shape_of(weight, config)[1]});
    c.ids = ids;
  }
}

void LowRankAdapter::tie(const LowRankConfig& said) {
  const MatrixId embedding{Role::embedding}, head{Role::head};
  Change &e = changes_[embedding], &h = changes_[head];
  const bool embedding_saved = said.saves(module_path({Role::embedding})),
             head_saved = said.saves(module_path({Role::head}));
  const auto as_embedding = [&] {  // the file may hold the same numbers once more
    for (const io::TensorEntry& entry : file_.entries())
      if (entry.name.starts_with(factor_name(module_path({Role::head}), "")))
        used_.insert(entry.name);
  };
  if (said.keeps_tie && (embedding_saved || head_saved || e.rank > 0)) {
    h = e;
    return as_embedding();
  }
  // A copy in modules_to_save is the module's own; other replacements are of the shared weight.
  const io::TensorView shared = !head_saved && !h.replaced.shape.empty() ? h.replaced
                                : !embedding_saved                       ? e.replaced
                                                                         : io::TensorView{};
  if (!embedding_saved) e.replaced = shared;
  if (!head_saved) h.replaced = shared;
  if (!e.ids.empty() && h.ids.empty()) {
    h.tokens = e.tokens;
    h.ids = e.ids;
    as_embedding();
  }
}

bool LowRankAdapter::unties() const {
  const auto of = [&](Role weight) {
    const auto it = changes_.find({weight});
    return it == changes_.end() ? Change{} : it->second;
  };
  return tied_ && !of(Role::embedding).same(of(Role::head));
}

void LowRankAdapter::drop_unchanged() {
  std::erase_if(changes_, [](const auto& item) {
    const Change& c = item.second;
    return c.rank == 0 && c.replaced.shape.empty() && c.ids.empty() && c.added.shape.empty();
  });
}

void LowRankAdapter::warn_unused(const std::string& where) {
  std::vector<std::string> unused;
  for (const io::TensorEntry& entry : file_.entries())
    if (!used_.contains(entry.name)) unused.push_back(io::quote(entry.name));
  if (unused.empty()) return;
  warnings_.push_back(fmt::format("{}: {} tensor{} of the adapter {} not used: {}{}", where,
                                  unused.size(), unused.size() == 1 ? "" : "s",
                                  unused.size() == 1 ? "is" : "are", unused.front(),
                                  unused.size() == 1 ? "" : ", ..."));
}

bool LowRankAdapter::is_product(MatrixId id) const {
  const Change& c = changes_.at(id);
  return c.rank > 0 && c.replaced.shape.empty() && c.magnitude.shape.empty();
}

std::vector<std::string> LowRankAdapter::others() const {
  std::vector<std::string> names;
  for (const auto& [place, c] : changes_)
    if (is_outside(place.role) || c.rank == 0 || !c.replaced.shape.empty())
      names.push_back(canonical_name(place));
  return names;
}

void LowRankAdapter::drop_equal(const WeightSource& base) {
  for (auto& [place, c] : changes_) {
    if (c.replaced.shape.empty()) continue;
    const MatrixId id = tied_ && place.role == Role::head ? MatrixId{Role::embedding} : place;
    const int64_t n = count(c.replaced), cols = c.replaced.shape.back();
    const int64_t rows = n / cols, each = std::max<int64_t>(1, kReadAtOnce / cols);
    const bool is_vector = c.replaced.shape.size() == 1;
    bool equal = !is_vector || base.vector(id) == all(c.replaced);
    std::vector<float> piece;
    for (int64_t first = 0; equal && !is_vector && first < rows; first += each) {
      const int64_t last = std::min(rows, first + each);
      piece.resize(static_cast<size_t>((last - first) * cols));
      base.rows(id, first, last, DType::f32, piece.data());
      equal = piece == numbers(c.replaced, first * cols, (last - first) * cols);
    }
    if (equal) c.replaced = {};
  }
  drop_unchanged();
}

std::vector<std::string> LowRankAdapter::facts() const {
  std::vector<std::string> all;
  for (const auto& [place, c] : changes_) {
    const std::string name = canonical_name(place);
    if (is_outside(place.role) && c.rank > 0) all.push_back(fmt::format("{} {}", name, c.gamma));
    if (!c.added.shape.empty()) all.push_back(fmt::format("{} {}", name, c.gamma));
    if (!c.ids.empty()) all.push_back(fmt::format("{} {}", name, fmt::join(c.ids, " ")));
    if (!c.replaced.shape.empty()) all.push_back(name + " " + c.replaced.name);
  }
  for (const io::TensorEntry& entry : file_.entries())
    if (!used_.contains(entry.name)) all.push_back("not used " + entry.name);
  if (unties()) all.emplace_back("untied");
  return all;
}

io::TensorView LowRankAdapter::tensor(const std::string& name, const io::Shape& shape) {
  const io::TensorEntry* const entry = file_.find(name);
  if (entry == nullptr) throw unfit(file_.where(), "'{}' is missing", name);
  if (entry->shape != shape || !is_weight_type(entry->dtype))
    throw unfit(file_.where(), "'{}' is {} {}, expected F32, BF16 or F16 {}", name,
                io::quote(entry->dtype), io::shape_text(entry->shape), io::shape_text(shape));
  const io::TensorView view = file_.tensor(*entry);
  check_values(view);
  used_.insert(name);
  return view;
}

void LowRankAdapter::check_values(const io::TensorView& t) const {
  const int64_t n = count(t);
  for (int64_t first = 0; first < n; first += kReadAtOnce) {
    const std::vector<float> piece = numbers(t, first, std::min(kReadAtOnce, n - first));
    const auto bad = std::ranges::find_if(piece, [](float x) { return !std::isfinite(x); });
    if (bad != piece.end())
      throw unfit(file_.where(), "value {} of '{}' is {}, expected a finite number",
                  first + (bad - piece.begin()), t.name, *bad)
          .hint("training diverged: use an earlier checkpoint of the adapter");
  }
}

std::vector<float> LowRankAdapter::numbers(const io::TensorView& t, int64_t first,
                                           int64_t n) const {
  return stored_in(file_, t, n).values(first, first + n);
}

std::vector<float> LowRankAdapter::all(const io::TensorView& t) const {
  return t.shape.empty() ? std::vector<float>() : numbers(t, 0, count(t));
}

std::vector<float> LowRankAdapter::first_factor(MatrixId id) const {
  return all(changes_.at(id).a);
}

std::vector<float> LowRankAdapter::second_factor(MatrixId id) const {
  return all(changes_.at(id).b);
}

std::vector<float> LowRankAdapter::magnitudes(MatrixId id) const {
  return all(changes_.at(id).magnitude);
}

void LowRankAdapter::merge(MatrixId id, int64_t begin, int64_t end, std::span<float> rows,
                           float by) const {
  const auto it = changes_.find(id);
  if (it == changes_.end()) return;
  const Change& c = it->second;
  const int64_t n = end - begin, in = std::ssize(rows) / n;
  if (!c.replaced.shape.empty())
    std::ranges::copy(numbers(c.replaced, begin * in, n * in), rows.begin());
  for (size_t i = 0; i < c.ids.size(); ++i)
    if (const int32_t token = c.ids[i]; token >= begin && token < end)
      std::ranges::copy(numbers(c.tokens, static_cast<int64_t>(i) * in, in),
                        rows.begin() + (token - begin) * in);
  if (c.rank == 0) return;
  std::vector<float> a, b, magnitude;
  if (c.a.name.ends_with(kEmbeddingB)) {
    a = embedding_factor_;
    b.resize(static_cast<size_t>(n * c.rank));
    for (int64_t k = 0; k < c.rank; ++k) {
      const std::vector<float> of_rank = numbers(c.b, k * c.b.shape[1] + begin, n);
      for (int64_t r = 0; r < n; ++r)
        b[static_cast<size_t>(r * c.rank + k)] = of_rank[static_cast<size_t>(r)];
    }
  } else {
    a = all(c.a);
    b = numbers(c.b, begin * c.rank, n * c.rank);
  }
  if (!c.magnitude.shape.empty()) magnitude = numbers(c.magnitude, begin, n);
  merge_low_rank(
      rows,
      {.id = id, .rank = c.rank, .gamma = by * c.gamma, .a = a, .b = b, .magnitude = magnitude});
}

void LowRankAdapter::merge(MatrixId id, std::span<float> values) const {
  const Change& c = changes_.at(id);
  if (!c.replaced.shape.empty()) std::ranges::copy(all(c.replaced), values.begin());
  const std::vector<float> added = all(c.added);
  for (size_t i = 0; i < added.size(); ++i) values[i] += c.gamma * added[i];
}

}  // namespace tandem::model
