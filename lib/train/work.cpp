#include "train/work.h"

#include <algorithm>

#include "model/spec/work.h"

namespace tandem::train {
namespace {

double operations(const io::Shape& shape) {
  return 2.0 * static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
}

/// A weight's gradient, a row of its input. Of single weights the whole matrix has one, and they
/// are picked from it.
double gradient_operations(const TrainedMatrix& m, const io::Shape& shape) {
  if (m.part == TrainedMatrix::Part::low_rank) return 0;  // of its factors
  return m.part == TrainedMatrix::Part::elements ? operations(shape)
                                                 : 2.0 * static_cast<double>(m.size());
}

/// A layer's products, a row, and its share of a forward's attention.
Work layer_work(const model::PerStack<TrainedMatrix>& t, const LayerFrontier& f,
                const model::ModelConfig& c, int rank, double rows, double attention) {
  const bool layer = f.again == LayerFrontier::Again::layer;
  const bool of_ffn = f.again != LayerFrontier::Again::none;
  const model::PerStack<bool> passes = {f.input, f.attention, f.middle, f.gate_up},
                              again = {layer, layer, of_ffn, false};
  Work w{.forward = attention};
  for (const Role role : model::kLayerStacks) {
    const io::Shape shape = model::shape_of(role, c);
    const double product = rows * operations(shape);
    w.forward += product;
    if (passes[role]) w.input_gradients += product;
    if (again[role]) w.again += product;
    w.weight_gradients += rows * gradient_operations(t[role], shape);
    for (const LowRankFactors& part : t[role].factors) {
      const auto by_rank = [&](int64_t n) { return rows * 2.0 * rank * static_cast<double>(n); };
      w.factors += (again[role] ? 2 : 1) * by_rank(part.rows + shape[1]);
      w.weight_gradients += by_rank(part.rows + shape[1]);
      // Through B, for the gradient of A; through A as far as anything below is trained.
      w.input_gradients += by_rank(part.rows + (passes[role] ? shape[1] : 0));
    }
  }
  if (f.attention) {
    w.input_gradients += 2 * attention;  // of q, k, v and the probabilities
    w.again += attention / 2;            // the scores
  }
  if (layer) w.again += attention;
  return w;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  forward += other.forward;
  input_gradients += other.input_gradients;
  weight_gradients += other.weight_gradients;
  factors += other.factors;
  again += other.again;
  return *this;
}

Work work_of(const TrainedSet& set, const Frontier& frontier, const model::ModelConfig& config,
             std::span<const MicroBatch> batches) {
  Work all;
  for (const MicroBatch& b : batches) {
    const auto rows = static_cast<double>(b.tokens.size());
    for (int layer = 0; layer < config.n_layers; ++layer) {
      double pairs = 0;
      for (size_t i = 0; i + 1 < b.document_begin.size(); ++i)
        pairs += model::prefill_pairs(b.document_begin[i + 1] - b.document_begin[i],
                                      config.layer(layer).attention.window);
      const auto at = static_cast<size_t>(layer);
      all += layer_work(set.layers[at], frontier.layers[at], config, set.low_rank.rank, rows,
                        model::attention_flops(config, pairs));
    }
    const auto supervised = static_cast<double>(
        std::ranges::count_if(b.targets, [](int32_t target) { return target >= 0; }));
    const double head = supervised * model::head_flops(config);
    all.forward += head;
    all.input_gradients += head;
    all.weight_gradients += supervised * 2.0 * static_cast<double>(set.lm_head.size());
  }
  return all;
}

}  // namespace tandem::train
