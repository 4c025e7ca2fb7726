#pragma once
#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine_runs.h"
#include "train/selection/selection.h"
#include "train/trainer.h"

/// Short training runs of small models with random numbers, on random tokens.
namespace tandem::test {

inline train::TrainerSpec trainer_spec(const std::filesystem::path& folder, DType dtype) {
  return {.config = decode::open_config(folder.string()),
          .dtype = dtype,
          .max_rows = 256,
          .max_documents = 8,
          .head_rows = 32,
          .schedule = {.kind = train::Schedule::Kind::constant, .rate = 1e-3}};
}

inline train::TrainerSpec trainer_spec(const char* model, DType dtype = DType::f32) {
  return trainer_spec(small_model(model), dtype);
}

inline std::unique_ptr<train::Trainer> make_trainer(const std::string& model,
                                                    const train::TrainerSpec& spec,
                                                    const train::TrainedSet& set) {
  return std::make_unique<train::Trainer>(
      spec, set, decode::open_model(small_model(model).string(), 0).source);
}

/// Documents of random tokens, each row supervised that `supervised` takes by its number.
template <class Supervised>
train::MicroBatch random_documents(const std::vector<int>& lengths, int vocab, uint64_t seed,
                                   const Supervised& supervised) {
  PhiloxStream draw(seed);
  train::MicroBatch batch{.tokens = {}, .targets = {}, .document_begin = {0}};
  for (const int n : lengths) {
    for (int i = 0; i < n; ++i)
      batch.tokens.push_back(static_cast<int32_t>(draw.below(static_cast<uint32_t>(vocab))));
    for (int i = 0; i < n; ++i) {
      const auto row = batch.targets.size();
      const bool last = i + 1 == n;
      batch.targets.push_back(last || !supervised(row) ? -1 : batch.tokens[row + 1]);
    }
    batch.document_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
  }
  return batch;
}

inline train::MicroBatch random_documents(const std::vector<int>& lengths, int vocab,
                                          uint64_t seed) {
  return random_documents(lengths, vocab, seed, [](size_t) { return true; });
}

inline std::vector<float> copy_of(std::span<const float> x) { return {x.begin(), x.end()}; }

inline double norm_of(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

/// |a - b| / |b|.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum) / norm_of(b);
}

/// A named part of the flat buffers.
struct NamedPart {
  std::string name;
  size_t begin, size;

  template <class T>
  std::span<T> of(std::span<T> values) const {
    return values.subspan(begin, size);
  }
};

/// Every trained tensor.
inline std::vector<NamedPart> parts_of(const train::TrainedSet& set) {
  std::vector<NamedPart> parts;
  const auto add = [&](const std::string& name, int64_t begin, int64_t size) {
    if (size > 0) parts.push_back({name, static_cast<size_t>(begin), static_cast<size_t>(size)});
  };
  const auto add_matrix = [&](const std::string& name, const train::TrainedMatrix& m) {
    add(name, m.offset, m.size());
    add(name + ".bias", m.bias_offset, m.bias_size);
  };
  for (size_t i = 0; i < set.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const model::Role role : model::kLayerStacks)
      add_matrix(layer + model::info(role).planned, set.layers[i][role]);
  }
  add_matrix("lm_head", set.lm_head);
  if (set.embedding.offset != set.lm_head.offset) add_matrix("embedding", set.embedding);
  return parts;
}

/// The same, and each norm.
inline std::vector<NamedPart> parts_and_norms(const train::TrainedSet& set,
                                              const model::ModelConfig& c) {
  std::vector<NamedPart> parts = parts_of(set);
  if (!set.norms) return parts;
  auto at = static_cast<size_t>(set.norms_offset);
  const auto add = [&](model::MatrixId id) {
    const auto n = static_cast<size_t>(model::shape_of(id.role, c)[0]);
    parts.push_back({model::canonical_name(id), at, n});
    at += n;
  };
  for (int i = 0; i < c.n_layers; ++i)
    for (const model::Role role : model::layer_roles(c))
      if (model::is_norm(role)) add({role, i});
  add({model::Role::out_norm});
  return parts;
}

/// All matrices take part, half of their heads and channels.
inline train::SelectionSpec half_of_everything() {
  train::SelectionSpec spec{.seed = 5};
  spec.ratio.fill(0.5);
  return spec;
}

/// Derivatives of a trainer's loss along parts of its values, by differences of the fourth order.
class Probe {
 public:
  /// drops   of the loss that gradients are taken of, with its dropout
  Probe(train::Trainer& trainer, const train::MicroBatch& batch, bool drops = false)
      : trainer_(trainer), batch_(batch), drops_(drops), start_(copy_of(trainer.state().values)) {}

  double derivative(const NamedPart& part, const std::vector<double>& u, double step) {
    const auto rise = [&](double by) { return loss(part, u, by) - loss(part, u, -by); };
    const double value = (8 * rise(step) - rise(2 * step)) / (12 * step);
    loss(part, u, 0);
    return value;
  }

 private:
  double loss(const NamedPart& part, const std::vector<double>& u, double by) {
    const std::span<float> values = part.of(trainer_.state().values);
    for (size_t i = 0; i < u.size(); ++i)
      values[i] = static_cast<float>(start_[part.begin + i] + by * u[i]);
    trainer_.publish();
    return (drops_ ? trainer_.gradients({&batch_, 1}) : trainer_.loss({&batch_, 1})).mean();
  }

  train::Trainer& trainer_;
  const train::MicroBatch& batch_;
  bool drops_;
  std::vector<float> start_;
};

/// A trainer of the folder's model that has taken two steps holds what its plan says.
inline void check_growth(const train::TrainerSpec& spec, const train::TrainedSet& set,
                         const std::filesystem::path& folder, const train::MicroBatch& batch) {
  ::malloc_trim(0);  // memory that earlier cases freed would hide growth
  const size_t before = resident_bytes();
  train::Trainer trainer(spec, set, decode::open_model(folder.string(), 0).source);
  for (int i = 0; i < 2; ++i) trainer.step({&batch, 1});
  const auto grown = static_cast<double>(resident_bytes() - before);
  const auto planned = static_cast<double>(train::Trainer::plan(spec, set).peak({}));
  MESSAGE("planned " << format_bytes(static_cast<size_t>(planned)) << ", grown by "
                     << format_bytes(static_cast<size_t>(grown)));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  MESSAGE("skipped: sanitizers hold memory of their own");
#else
  // Library state that no plan can name: oneDNN's generated code and thread stacks.
  CHECK(std::abs(grown - planned) <= 0.03 * planned + 0x1p23);
#endif
}

}  // namespace tandem::test
