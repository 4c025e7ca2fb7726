#include "train/selection/calibration.h"

#include "base/parallel.h"
#include "ops/linear_gradient.h"
#include "train/backward/documents.h"

namespace tandem::train {
namespace {

size_t index_of(int64_t n) { return static_cast<size_t>(n); }

/// sums[c] += sum over rows of x^2.
template <class T>
void add_squares(std::vector<double>& sums, const T* x, int64_t rows) {
  const auto cols = static_cast<int64_t>(sums.size());
  parallel_ranges(static_cast<int>(cols), 64, [&](int begin, int end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = begin; c < end; ++c) {
        const double value = to_float(x[r * cols + c]);
        sums[index_of(c)] += value * value;
      }
  });
}

void add_squares(std::vector<double>& sums, const Tensor& x) {
  sums.resize(index_of(x.row_size()));
  if (x.dtype() == DType::bf16)
    add_squares(sums, x.as<bf16>(), x.rows());
  else
    add_squares(sums, x.as<float>(), x.rows());
}

/// Sums over the columns of each row.
template <class T>
std::vector<double> row_squares(const T* x, int64_t rows, int64_t cols) {
  std::vector<double> sums(index_of(rows));
  parallel_ranges(static_cast<int>(rows), 64, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const double value = to_float(x[r * cols + c]);
        sums[index_of(r)] += value * value;
      }
  });
  return sums;
}

std::vector<double> row_squares(const Tensor& x) {
  return x.dtype() == DType::bf16 ? row_squares(x.as<bf16>(), x.rows(), x.row_size())
                                  : row_squares(x.as<float>(), x.rows(), x.row_size());
}

/// All matrices of one layer, or of all.
TrainedSet matrices_of(const model::ModelConfig& config, int layer) {
  TrainedSet set;
  for (int i = 0; i < config.n_layers; ++i) {
    TrainedMatrix m;
    if (layer < 0 || i == layer) m.part = TrainedMatrix::Part::all;
    set.layers.push_back({m, m, m, m});
  }
  lay_out(set, config);
  return set;
}

MemoryPlan plan_of(const TrainerSpec& spec) {
  MemoryPlan plan;
  model::Transformer::plan(spec.config, spec.model_options({.from = 0}), plan);
  kv::Cache::plan(spec.cache(), plan);
  return plan;
}

constexpr const char* kA = "calibration/ffn";

}  // namespace

Calibration::Calibration(const TrainerSpec& spec, std::unique_ptr<model::WeightSource> source)
    : spec_(spec),
      queue_(spec.device.kind == Device::Kind::cuda
                 ? std::make_unique<cuda::Queue>(spec.device.index)
                 : nullptr),
      exec_{queue_.get()},
      arena_(plan_of(spec)),
      model_(spec.config, spec.model_options({.from = 0}), std::move(source), arena_, {}, exec_),
      cache_(spec.cache(), arena_, model_.ropes(), exec_) {}

Calibration::HostTensor Calibration::on_host(const Tensor& t) const {
  if (!exec_.on_gpu()) return {{}, t};
  HostTensor host{std::vector<std::byte>(t.bytes()), {}};
  exec_.queue->copy_out(host.copy.data(), t.raw(), t.bytes());
  exec_.queue->wait();
  host.tensor = Tensor(host.copy.data(), t.dtype(), {t.rows(), t.row_size()});
  return host;
}

FeatureSquares Calibration::squares_of(const std::function<Tensor(Role)>& of) const {
  FeatureSquares s;
  for (const Role role : model::kLayerStacks)
    if (model::ends_in_stream(role))
      add_column_squares(s[role], of(role));
    else
      s[role] = row_squares(on_host(of(role)).tensor);
  return s;
}

void Calibration::add_column_squares(std::vector<double>& sums, const Tensor& x) const {
  const HostTensor host = on_host(x);
  add_squares(sums, host.tensor);
}

Scores Calibration::weights() const {
  std::vector<FeatureSquares> squares;
  const auto rows = [&](const ops::PackedWeights& w) {
    return Tensor(const_cast<void*>(ops::trainable_rows(w)), w.dtype(), {w.out(), w.in()},
                  spec_.device);
  };
  for (const model::LayerWeights& w : model_.weights().layers)
    squares.push_back(squares_of([&](Role role) { return rows(w[role]); }));
  return scores_of(squares, spec_.config);
}

Scores Calibration::activations(std::span<const MicroBatch> batches) {
  const model::ModelConfig& c = spec_.config;
  const int64_t qkv_dim = c.q_dim() + 2 * int64_t{c.kv_dim()}, ffn = c.ffn_dim;
  MemoryPlan plan;
  const auto add = [&](const std::string& name, int64_t cols) {
    plan.add(name, index_of(spec_.max_rows * cols) * dtype_bytes(spec_.dtype), spec_.device);
  };
  const auto name = [](int i, const char* of) {
    return "calibration/layers." + std::to_string(i) + "." + of;
  };
  for (int i = 0; i < c.n_layers; ++i) {
    add(name(i, "qkv"), qkv_dim);
    add(name(i, "attended"), c.q_dim());
    add(name(i, "gate_up"), 2 * ffn);
  }
  add(kA, ffn);
  Arena arena(plan);
  void* const a = arena.take(kA);
  std::vector<model::LayerActivations> kept;
  for (int i = 0; i < c.n_layers; ++i)
    kept.push_back({.qkv = arena.take(name(i, "qkv")),
                    .attended = arena.take(name(i, "attended")),
                    .gate_up = arena.take(name(i, "gate_up"))});
  std::vector<FeatureSquares> squares(kept.size());
  for (const MicroBatch& batch : batches) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    if (rows == 0) continue;
    Documents documents(cache_, batch.document_begin);
    const kv::Step step = documents.begin();
    model_.forward(batch.tokens, step, cache_, kept);
    const auto act = [&](void* place, int64_t cols) {
      return Tensor(place, spec_.dtype, {rows, cols}, spec_.device);
    };
    for (size_t i = 0; i < kept.size(); ++i) {
      add_column_squares(squares[i][Role::qkv], act(kept[i].qkv, qkv_dim));
      add_column_squares(squares[i][Role::o], act(kept[i].attended, c.q_dim()));
      add_column_squares(squares[i][Role::gate_up], act(kept[i].gate_up, 2 * ffn));
      ops::gate_mul(act(a, ffn), act(kept[i].gate_up, 2 * ffn),
                    c.layer(static_cast<int>(i)).ffn.gate, exec_.stream());
      add_column_squares(squares[i][Role::down], act(a, ffn));
    }
  }
  return scores_of(squares, c);
}

Scores Calibration::gradients(std::span<const MicroBatch> batches) {
  const int64_t n = n_supervised(batches);
  std::vector<FeatureSquares> squares;
  for (int layer = 0; layer < spec_.config.n_layers; ++layer) {
    const TrainedSet set = matrices_of(spec_.config, layer);
    MemoryPlan plan;
    Backward::plan(spec_.backward(), set, plan);
    plan.add("calibration/gradient", index_of(set.size) * sizeof(float), spec_.device);
    Arena arena(plan);
    float* const gradient = static_cast<float*>(arena.take("calibration/gradient"));
    Backward backward(spec_.backward(), set, model_, cache_, arena, exec_);
    for (const MicroBatch& batch : batches)
      backward.run(batch, n == 0 ? 0.0f : 1.0f / static_cast<float>(n),
                   {gradient, index_of(set.size)});
    const auto of = [&](const TrainedMatrix& m) {
      return Tensor(gradient + m.offset, DType::f32, {m.rows, m.cols}, spec_.device);
    };
    squares.push_back(squares_of([&](Role role) { return of(set.layers[index_of(layer)][role]); }));
  }
  return scores_of(squares, spec_.config);
}

Scores products(const Scores& a, const Scores& b) {
  Scores all = a;
  for (const Role role : model::kLayerRoles)
    for (size_t l = 0; l < all[role].size(); ++l)
      for (size_t u = 0; u < all[role][l].size(); ++u) all[role][l][u] *= b[role][l][u];
  return all;
}

}  // namespace tandem::train
