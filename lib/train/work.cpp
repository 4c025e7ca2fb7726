#include "train/work.h"

#include <algorithm>

#include "model/work.h"

namespace tandem::train {
namespace {

double operations(const model::ProductShape& p) {
  return 2.0 * static_cast<double>(p.out) * static_cast<double>(p.in);
}

/// A weight's gradient, a row of its input. Of single weights the whole matrix has one, and they
/// are picked from it.
double gradient_operations(const TrainedMatrix& m, const model::ProductShape& p) {
  if (m.part == TrainedMatrix::Part::low_rank) return 0;  // of its factors
  return m.part == TrainedMatrix::Part::elements ? operations(p)
                                                 : 2.0 * static_cast<double>(m.size());
}

/// A multiplication with each low-rank factor, a row.
double factor_operations(const TrainedMatrix& m, int rank, const model::ProductShape& p) {
  double operations = 0;
  for (const LowRankFactors& f : m.factors)
    operations += 2.0 * rank * static_cast<double>(f.rows + p.in);
  return operations;
}

/// A layer's products, a row, and its share of a forward's attention.
Work layer_work(const TrainedLayer& t, const LayerFrontier& f, const model::ModelConfig& c,
                int rank, double rows, double attention) {
  const auto [qkv, wo, gate_up, w_down] = model::layer_products(c);
  Work w{.forward =
             rows * (operations(qkv) + operations(wo) + operations(gate_up) + operations(w_down)) +
             attention};
  const auto passes = [&](bool on, const model::ProductShape& p) {
    if (on) w.input_gradients += rows * operations(p);
  };
  passes(f.gate_up, w_down);
  passes(f.middle, gate_up);
  passes(f.attention, wo);
  passes(f.input, qkv);
  if (f.attention) {
    w.input_gradients += 2 * attention;  // of q, k, v and the probabilities
    w.again += attention / 2;            // the scores
  }
  w.weight_gradients =
      rows * (gradient_operations(t.qkv, qkv) + gradient_operations(t.wo, wo) +
              gradient_operations(t.gate_up, gate_up) + gradient_operations(t.w_down, w_down));
  const auto factors = [&](const TrainedMatrix& m, const model::ProductShape& p, bool passes_on,
                           bool again) {
    const double operations = rows * factor_operations(m, rank, p);
    w.factors += again ? 2 * operations : operations;
    w.weight_gradients += operations;
    // Through B, for the gradient of A; through A as far as anything below is trained.
    for (const LowRankFactors& part : m.factors)
      w.input_gradients +=
          rows * 2.0 * rank * static_cast<double>(part.rows + (passes_on ? p.in : 0));
  };
  const bool layer = f.again == LayerFrontier::Again::layer;
  const bool of_ffn = f.again != LayerFrontier::Again::none;
  factors(t.qkv, qkv, f.input, layer);
  factors(t.wo, wo, f.attention, layer);
  factors(t.gate_up, gate_up, f.middle, of_ffn);
  factors(t.w_down, w_down, f.gate_up, false);
  if (of_ffn) w.again += rows * operations(gate_up);
  if (layer) w.again += rows * (operations(qkv) + operations(wo)) + attention;
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
