#include "train/backward/backward.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/linear_choices.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/backward/documents.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

}  // namespace

Backward::Backward(const BackwardSpec& spec, const TrainedSet& set, model::Transformer& model,
                   kv::Cache& cache, Arena& arena, const Exec& exec)
    : spec_(spec),
      set_(set),
      frontier_(frontier_of(set, spec.config, spec.recompute)),
      model_(model),
      cache_(cache),
      exec_(exec),
      buffers_(spec_, frontier_, arena),
      indices_(set, arena, exec) {
  if (set.low_rank.rank > 0) low_rank_ = std::make_unique<LowRank>(spec_, set, model, arena, exec);
}

void Backward::choose_products(int64_t wanted, std::span<float> gradient) {
  if (!exec_.on_gpu()) return;
  model_.choose_products(wanted);
  const int64_t rows = std::min<int64_t>(ops::rows_bucket(wanted), spec_.max_rows);
  const auto layer = static_cast<size_t>(frontier_.first());
  if (!chosen_.insert(rows).second || layer >= frontier_.layers.size()) return;
  n_rows_ = rows;
  gradient_ = gradient;
  void* const wide = buffers_.kept[layer].gate_up != nullptr ? buffers_.kept[layer].gate_up
                                                             : buffers_.again.gate_up;
  const auto product = [&](const TrainedMatrix& m, const ops::PackedWeights& w, void* dy, void* x,
                           void* dx) {
    poll(spec_.interrupted);
    const Tensor of_y = act(dy, w.out());
    ops::fill_random(of_y.raw(), of_y.dtype(), {.n = of_y.elements()}, stream());
    ops::tune_input_gradient(act(dx, w.in()), of_y, w, buffers_.workspace, stream());
    if (gradient_.empty() || !m.trained() || m.part == Part::elements || m.part == Part::low_rank)
      return;
    ops::fill_random(x, spec_.dtype, {.n = n_rows_ * w.in()}, stream());
    ops::tune_weight_gradient(flat(m.offset, m.rows, m.cols),
                              act(dy, m.part == Part::rows ? m.rows : w.out()),
                              act(x, m.part == Part::columns ? m.cols : w.in()),
                              ops::Accumulate::yes, buffers_.workspace, stream());
    if (m.part == Part::all)
      ops::tune_weight_gradient(flat(m.offset, m.rows, m.cols), of_y, act(x, w.in()),
                                ops::Accumulate::no, buffers_.workspace, stream());
  };
  const model::LayerWeights& w = model_.weights().layers[layer];
  const auto& t = set_.layers[layer];
  product(t[Role::down], w[Role::down], buffers_.dstream_act, buffers_.dwide, buffers_.dwide);
  product(t[Role::gate_up], w[Role::gate_up], wide, buffers_.normed, buffers_.dnormed);
  product(t[Role::o], w[Role::o], buffers_.dstream_act, buffers_.dwide, buffers_.dwide);
  product(t[Role::qkv], w[Role::qkv], buffers_.dqkv, buffers_.normed, buffers_.dnormed);
}

const int32_t* Backward::placed(std::span<const int32_t> list, int32_t* place) const {
  if (!exec_.on_gpu()) return list.data();
  exec_.queue->copy_in(place, list.data(), list.size_bytes());
  return place;
}

double Backward::run(const MicroBatch& batch, float scale, std::span<float> gradient,
                     const MicroBatchName& name, ops::Accumulate accumulate,
                     const std::function<void(int layer)>& on_layer) {
  n_rows_ = static_cast<int64_t>(batch.tokens.size());
  TANDEM_CHECK(n_rows_ <= spec_.max_rows && batch.targets.size() == batch.tokens.size() &&
                   !batch.document_begin.empty() && batch.document_begin.front() == 0 &&
                   batch.document_begin.back() == n_rows_,
               "expected a valid micro-batch, found {} rows; at most {} are supported", n_rows_,
               spec_.max_rows);
  std::vector<int32_t> rows, targets;  // supervised
  for (size_t r = 0; r < batch.targets.size(); ++r) {
    if (batch.targets[r] < 0) continue;
    rows.push_back(static_cast<int32_t>(r));
    targets.push_back(batch.targets[r]);
  }
  if (rows.empty()) return 0;
  choose_products(n_rows_, {});
  n_rows_ = static_cast<int64_t>(batch.tokens.size());
  gradient_ = gradient;
  accumulate_ = accumulate;
  if (accumulate == ops::Accumulate::no && !gradient.empty()) clear_gradient();

  Documents documents(cache_, batch.document_begin);
  const kv::Step step = documents.begin();
  const bool backward = !gradient.empty();
  if (low_rank_) low_rank_->begin(name, backward);
  model_.forward(batch.tokens, step, cache_,
                 backward ? std::span<const model::LayerActivations>(buffers_.kept)
                          : std::span<const model::LayerActivations>{});
  const auto n_supervised = static_cast<int64_t>(rows.size());
  head({placed(rows, buffers_.rows), placed(targets, buffers_.targets), n_supervised}, scale);
  if (on_layer) on_layer(spec_.config.n_layers);
  for (int i = spec_.config.n_layers; backward && i-- > frontier_.first();) {
    poll(spec_.interrupted);
    const model::LayerActivations kept = activations(i, step);
    ffn(i, kept);
    if (frontier_.layers[static_cast<size_t>(i)].middle) attention(i, kept, step);
    if (on_layer) on_layer(i);
  }
  if (backward && set_.embedding.trained()) embedding(batch.tokens);
  return sum_of_losses(n_supervised);
}

bool Backward::writes_whole(const TrainedMatrix& m) const {
  return m.part == Part::all && &m != &set_.lm_head && &m != &set_.embedding;
}

void Backward::clear_gradient() {
  int64_t begin = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > begin) ops::clear(gradient_.data() + begin, end - begin, stream());
  };
  each_matrix(set_, [&](const TrainedMatrix& m) {
    if (!writes_whole(m)) return;
    clear_to(m.offset);
    begin = m.offset + m.size();
  });
  clear_to(set_.size);
}

void Backward::head(const Supervised& supervised, float scale) {
  const bool backward = !gradient_.empty();
  if (backward) ops::clear(buffers_.dstream, n_rows_ * spec_.config.dim, stream());
  const model::Weights& w = model_.weights();
  const int64_t most = std::min(spec_.head_rows, spec_.max_rows), vocab = spec_.config.vocab_size;
  for (int64_t begin = 0; begin < supervised.n; begin += most) {
    const int64_t n = std::min(most, supervised.n - begin);
    const int32_t* rows = supervised.rows + begin;
    const Tensor logits = tensor(buffers_.logits, DType::f32, n, vocab);
    const Tensor dlogits = tensor(buffers_.dlogits, spec_.dtype, n, vocab);
    model_.choose_logit_products(n, logits);
    model_.logits(logits, rows);
    ops::cross_entropy({.logits = logits,
                        .dlogits = backward ? dlogits : Tensor{},
                        .loss = buffers_.losses + begin,
                        .targets = supervised.targets + begin,
                        .scale = scale},
                       stream());
    if (!backward) continue;
    weight_gradient(set_.lm_head, dlogits, model_.head_in(n));
    const Tensor dnormed = tensor(buffers_.dnormed, spec_.dtype, n, spec_.config.dim);
    ops::linear_input_gradient(dnormed, dlogits, w.lm_head, ops::Accumulate::no, buffers_.workspace,
                               stream());
    norm_backward({.dx = dresidual(),
                   .dy = dnormed,
                   .x = model_.residual(),
                   .weight = w.out_norm,
                   .rows = rows,
                   .scale = spec_.config.head.scale});
  }
}

double Backward::sum_of_losses(int64_t n) const {
  const auto* losses = buffers_.losses;
  std::vector<float> copy;
  if (exec_.on_gpu()) {
    copy.resize(static_cast<size_t>(n));
    exec_.queue->copy_out(copy.data(), losses, copy.size() * sizeof(float));
    exec_.queue->wait();
    losses = copy.data();
  }
  return std::accumulate(losses, losses + n, 0.0);
}

void Backward::embedding(std::span<const int32_t> tokens) {
  const ops::TokenRows by_token(tokens);
  if (const float scale = spec_.config.embedding.scale_in(spec_.dtype); scale != 1)
    ops::rms_norm(dresidual(), dresidual(), nullptr, 0, stream(), {.scale = scale});
  ops::embedding_gradient(flat(set_.embedding.offset, set_.embedding.rows, set_.embedding.cols),
                          dresidual(), by_token, placed(by_token.lists, buffers_.token_rows),
                          stream());
}

}  // namespace tandem::train
