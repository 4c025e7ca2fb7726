#include "model/adapters/extract_slices.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/spec/settings.h"

namespace tandem::model {
namespace {

constexpr const char* kHint =
    "an adapter can only change heads of q, k, v and o and channels of gate, up and down: use the "
    "tuned model instead";

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void check_constants(const ComparedModel& base, const ComparedModel& tuned) {
  const ModelConfig &b = base.config, &t = tuned.config;
  const auto check = [&](const char* what, const auto& of_base, const auto& of_tuned) {
    if (of_base != of_tuned)
      throw input_error(tuned.where, "has {} {}, {} has {}", what, of_tuned, base.where, of_base)
          .hint("set -m to the base model of the tuned one");
  };
  check("architecture", b.architecture, t.architecture);
  check("hidden_size", b.dim, t.dim);
  check("num_hidden_layers", b.n_layers, t.n_layers);
  check("num_attention_heads", b.n_heads, t.n_heads);
  check("num_key_value_heads", b.n_kv_heads, t.n_kv_heads);
  check("head_dim", b.head_dim, t.head_dim);
  check("intermediate_size", b.ffn_dim, t.ffn_dim);
  check("vocab_size", b.vocab_size, t.vocab_size);
  check("rms_norm_eps", b.rms_eps, t.rms_eps);
  check("rope_theta", b.ropes.front().theta, t.ropes.front().theta);
  check("tie_word_embeddings", b.head.tied, t.head.tied);
  check("number of biases", b.qkv_bias() + b.o_bias() + b.mlp_bias(),
        t.qkv_bias() + t.o_bias() + t.mlp_bias());
  for (const std::string& change : changed_settings(settings_of(t), settings_text(settings_of(b))))
    throw input_error(tuned.where, "differs from {}: {}", base.where, change)
        .hint("set -m to the base model of the tuned one");
}

Error other_weight(const ComparedModel& base, const ComparedModel& tuned, MatrixId id, int64_t row,
                   int64_t column) {
  return input_error(tuned.where, "{} differs from {} at [{}, {}]", canonical_name(id), base.where,
                     row, column)
      .hint(kHint);
}

void check_vector(const ComparedModel& base, const ComparedModel& tuned, MatrixId id,
                  const WeightProgress& progress) {
  const auto a = base.source.vector(id), b = tuned.source.vector(id);
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) throw other_weight(base, tuned, id, 0, static_cast<int64_t>(i));
  add_read(progress, std::ssize(a));
}

constexpr const char* kWhole =
    "full fine-tuning, merged LoRA and reordered heads or channels cannot be extracted: use the "
    "tuned model, or the folder adapter/ of the s2ft-train run";

/// Of the matrices of all layers that adapters can change.
int64_t layer_numbers(const ModelConfig& config) {
  int64_t n = 0;
  for (const Role w : kLayerRoles) {
    const io::Shape shape = shape_of(w, config);
    n += shape[0] * shape[1];
  }
  return n * config.n_layers;
}

/// Calls visit(row, its values in the base, in the tuned model, columns).
template <class Visit>
void each_row(const ComparedModel& base, const ComparedModel& tuned, MatrixId id,
              const WeightProgress& progress, const Visit& visit) {
  const io::Shape shape = shape_of(id.role, base.config);
  const int64_t cols = shape[1];
  each_piece(base.source, tuned.source, id, shape, progress,
             [&](int64_t first, std::span<const float> before, std::span<const float> after) {
               for (int64_t at = 0; at < std::ssize(before); at += cols)
                 visit(first + at / cols, before.data() + at, after.data() + at, cols);
             });
}

/// The features that differ, all those of a unit of which one does.
std::vector<int32_t> changed(const ComparedModel& base, const ComparedModel& tuned, MatrixId id,
                             const WeightProgress& progress) {
  const bool columns = ends_in_stream(id.role);
  const int unit = unit_features(id.role, base.config);
  const auto n = shape_of(id.role, base.config)[columns ? 1 : 0];
  const int64_t units = n / unit;
  std::vector<bool> differs(static_cast<size_t>(units));
  each_row(base, tuned, id, progress,
           [&](int64_t row, const float* before, const float* after, int64_t cols) {
             for (int64_t c = 0; c < cols; ++c) {
               if (same(before[c], after[c])) continue;
               if (!std::isfinite(after[c]))
                 throw input_error(tuned.where, "{} is {} at [{}, {}], expected a finite number",
                                   canonical_name(id), after[c], row, c)
                     .hint("training diverged: tune the base model again");
               differs[static_cast<size_t>((columns ? c : row) / unit)] = true;
             }
           });
  // Of heads a run may well train all: a model has few.
  if (unit == 1 && std::ranges::count(differs, true) == units)
    throw input_error(tuned.where, "all {} {} of {} differ from {}", units,
                      columns ? "columns" : "rows", canonical_name(id), base.where)
        .hint(kWhole);
  std::vector<int32_t> index;
  for (int64_t i = 0; i < n; ++i)
    if (differs[static_cast<size_t>(i / unit)]) index.push_back(static_cast<int32_t>(i));
  return index;
}

}  // namespace

std::vector<OwnedSlice> extract_slices(const ComparedModel& base, const ComparedModel& tuned,
                                       const WeightProgress& progress) {
  check_constants(base, tuned);
  const ModelConfig& config = base.config;
  std::vector<OwnedSlice> slices;
  int64_t left = layer_numbers(config) / 2;
  const auto compare = [&](MatrixId id) {
    if (shape_of(id.role, config).size() == 1) return check_vector(base, tuned, id, progress);
    if (std::ranges::find(kLayerRoles, id.role) == kLayerRoles.end())
      return each_row(base, tuned, id, progress,
                      [&](int64_t row, const float* before, const float* after, int64_t cols) {
                        for (int64_t c = 0; c < cols; ++c)
                          if (!same(before[c], after[c]))
                            throw other_weight(base, tuned, id, row, c);
                      });
    std::vector<int32_t> index = changed(base, tuned, id, progress);
    if (index.empty()) return;
    const io::Shape shape = shape_of(id.role, config);
    left -= std::ssize(index) * shape[ends_in_stream(id.role) ? 0 : 1];
    if (left < 0)
      throw input_error(tuned.where, "more than half of the layer weights differ from {}",
                        base.where)
          .hint(kWhole);
    std::vector<float> values = feature_values(tuned.source, id, index, config);
    slices.push_back({id, std::move(index), std::move(values)});
  };
  for (const MatrixId& id : all_matrices(config)) compare(id);
  if (slices.empty())
    throw input_error(tuned.where, "has the same weights as {}: there is no change to extract",
                      base.where)
        .hint("give the tuned model, and its base model with -m");
  return slices;
}

}  // namespace tandem::model
