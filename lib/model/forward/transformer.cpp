#include "model/forward/transformer.h"

#include <algorithm>

#include "base/check.h"
#include "ops/channels.h"
#include "ops/elementwise.h"
#include "ops/linear_choices.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

constexpr const char *kIdsName = "activations/ids",
                     *kPromptResidual = "activations/prompt residual",
                     *kLogitParts = "activations/logits of ranks", *kBranch = "activations/branch",
                     *kSquares = "activations/row squares";

/// Bytes of the two groups of activations that share memory, per row.
size_t attention_row_bytes(const ModelConfig& c, DType dtype) {
  const int64_t q = c.q_dim(), kv = c.kv_dim();
  return static_cast<size_t>(q + 2 * kv + q + q) * dtype_bytes(dtype);
}

size_t ffn_row_bytes(const ModelConfig& c, DType dtype) {
  return static_cast<size_t>(3 * int64_t{c.ffn_dim}) * dtype_bytes(dtype);
}

size_t block_row_bytes(const ModelConfig& c, DType dtype) {
  return std::max(attention_row_bytes(c, dtype), ffn_row_bytes(c, dtype));
}

}  // namespace

void Transformer::plan(const ModelConfig& c, const Options& o, MemoryPlan& plan) {
  const auto rows = static_cast<size_t>(o.max_rows), head = static_cast<size_t>(o.max_logit_rows);
  const auto dim = static_cast<size_t>(c.dim);
  const bool on_gpu = o.device.kind == Device::Kind::cuda;
  Weights::plan(c, o.dtype, plan, o.places());
  if (o.places().divides()) ChannelSets::plan(c, o.places(), plan);
  for (size_t id = 0; id < c.ropes.size(); ++id)
    ops::RopeTable::plan(o.max_position, ops::rotated_dims(c.ropes[id], c.head_dim), plan, o.device,
                         static_cast<int>(id));
  plan.add("activations/residual", rows * dim * sizeof(float), o.device);
  if (c.has_branch()) plan.add(kBranch, rows * dim * sizeof(float), o.device);
  if (c.qk_norm() == QkNorm::row) plan.add(kSquares, rows * 2 * sizeof(float), o.device);
  if (o.max_prompt_rows > 0)
    plan.add(kPromptResidual, static_cast<size_t>(o.max_prompt_rows) * dim * sizeof(float),
             o.device);
  plan.add("activations/normed", rows * dim * dtype_bytes(o.dtype), o.device);
  plan.add("activations/block",
           rows * block_row_bytes(c, o.dtype) + (o.places().divides() ? kPartAlignment : 0),
           o.device);
  plan.add("activations/head_in", head * dim * dtype_bytes(o.dtype), o.device);
  if (on_gpu) plan.add(kIdsName, rows * sizeof(int32_t), o.device);
  if (o.n_ranks > 1)
    plan.add(
        kLogitParts,
        head * static_cast<size_t>(o.n_ranks) * static_cast<size_t>(c.head_rows()) * sizeof(float),
        o.device);
  plan.add("workspace/linear",
           Weights::workspace_bytes(c, o.dtype, o.max_rows, o.max_logit_rows, o.places()),
           o.device);
}

kv::Geometry geometry_of(const ModelConfig& c, DType dtype) {
  kv::Geometry g{.n_layers = c.n_layers,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = c.head_dim,
                 .dtype = dtype};
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const AttentionSpec& a = c.layer(layer).attention;
    const bool usual = a.scale == ops::ScoreScale{};
    g.layers.push_back(
        {.window = a.window,
         .rope = a.rope,
         .scale = usual ? ops::ScoreScale{.of = static_cast<double>(c.head_dim)} : a.scale});
  }
  return g;
}

Transformer::Transformer(const ModelConfig& c, const Options& o,
                         std::unique_ptr<WeightSource> source, Arena& arena,
                         const std::function<void(double share)>& on_load, const Exec& exec)
    : config_(c),
      options_(o),
      source_(std::move(source)),
      weights_(Weights::load(c, o.dtype, *source_, arena, {o.interrupted, on_load}, o.places())),
      exec_(exec),
      own_residual_(static_cast<float*>(arena.take("activations/residual"))),
      prompt_residual_(o.max_prompt_rows > 0 ? static_cast<float*>(arena.take(kPromptResidual))
                                             : nullptr),
      residual_(own_residual_),
      normed_(arena.take("activations/normed")),
      block_(static_cast<char*>(arena.take("activations/block"))),
      head_in_(arena.take("activations/head_in")),
      workspace_(static_cast<std::byte*>(arena.take("workspace/linear")),
                 arena.plan().find("workspace/linear")->bytes) {
  TANDEM_CHECK(o.n_ranks == (exec.comm != nullptr ? exec.comm->size() : 1),
               "unexpected number of ranks: {}", o.n_ranks);
  for (const ops::RopeSpec& rope : c.ropes)
    ropes_.emplace_back(rope, o.max_position, c.head_dim, arena, exec,
                        static_cast<int>(ropes_.size()), o.longest);
  if (c.has_branch()) branch_ = static_cast<float*>(arena.take(kBranch));
  if (c.qk_norm() == QkNorm::row) squares_ = static_cast<float*>(arena.take(kSquares));
  if (o.n_ranks > 1) logit_parts_ = static_cast<float*>(arena.take(kLogitParts));
  if (exec.on_gpu()) ids_ = static_cast<int32_t*>(arena.take(kIdsName));
  if (o.places().divides()) sets_ = std::make_unique<ChannelSets>(c, o.places(), arena, exec);
}

void Transformer::forward(std::span<const int32_t> tokens, const kv::Step& step, kv::Cache& cache,
                          std::span<const LayerActivations> kept) {
  TANDEM_CHECK(static_cast<int>(tokens.size()) == step.n_rows && step.n_rows <= options_.max_rows,
               "{} tokens do not fit {} rows, or exceed {}", tokens.size(), step.n_rows,
               options_.max_rows);
  if (exec_.on_gpu()) {
    if (!tokens.empty()) exec_.queue->copy_in(ids_, tokens.data(), tokens.size_bytes());
    return forward_ids(ids_, step, cache, kept);
  }
  forward_ids(tokens.data(), step, cache, kept);
}

void Transformer::forward_ids(const int32_t* ids, std::span<const kv::Step> steps,
                              kv::Cache& cache) {
  if (steps.size() == 1) return forward_ids(ids, steps[0], cache);
  part_begin_ = {0};
  for (const kv::Step& step : steps) part_begin_.push_back(part_begin_.back() + step.arrays.n_rows);
  TANDEM_CHECK(!weights_.stream && !sets_ && part_begin_.back() <= options_.max_rows,
               "{} rows of micro-batches exceed {}, or weights are offloaded", part_begin_.back(),
               options_.max_rows);
  for (size_t i = 0; i < steps.size(); ++i) {
    run_turn(i);
    enter(steps[i]);
    embed(ids + part_begin_[i]);
    attention_begin(0, weights_.layers[0], steps[i], cache);
  }
  // While one of them waits for its attention, the others' work goes on.
  for (int layer = 0; layer < config_.n_layers; ++layer)
    for (size_t i = 0; i < steps.size(); ++i) {
      const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
      run_turn(i);
      enter(steps[i]);
      attention_end(layer, w, steps[i], cache);
      ffn_block(layer, w, steps[i], {});
      if (layer + 1 < config_.n_layers)
        attention_begin(layer + 1, weights_.layers[static_cast<size_t>(layer) + 1], steps[i],
                        cache);
    }
  residual_ = own_residual_;
  n_rows_ = part_begin_.back();
  first_row_ = 0;
}

void Transformer::forward_ids(const int32_t* ids, const kv::Step& step, kv::Cache& cache,
                              std::span<const LayerActivations> kept) {
  TANDEM_CHECK(step.reading.channels == 0 || (channels_ != nullptr && kept.empty() &&
                                              step.reading.channels <= channels_->n_policies()),
               "FFN policy {} is unknown or cannot keep activations", step.reading.channels);
  TANDEM_CHECK(kept.empty() || static_cast<int>(kept.size()) == config_.n_layers,
               "found activations of {} layers, expected {}", kept.size(), config_.n_layers);
  n_rows_ = step.arrays.n_rows;
  residual_ = own_residual_;
  first_row_ = 0;
  if (n_rows_ == 0) return;
  enter(step);
  embed(ids);
  run_layers(step, cache, kept);
}

void Transformer::embed(const int32_t* ids) {
  const std::span<const int32_t> all(ids, static_cast<size_t>(n_rows_));
  const ops::PackedWeights& table = weights_.embedding();
  if (exec_.on_gpu()) {
    const ops::VocabularyPart part{config_.vocab_first, config_.vocab_size};
    const ops::VocabularyPart held = exec_.comm != nullptr ? part : ops::VocabularyPart{};
    if (const CodeTiles* codes = table.device_codes(); codes && weights_.host_embedding == nullptr)
      ops::embed_ids(residual(), *codes, ids, exec_.stream(), held);
    else
      ops::embed_ids(residual(), weights_.device_embedding(), ids, exec_.stream(), held);
    if (exec_.comm != nullptr) exec_.comm->sum(residual(), exec_.stream());
  } else if (options_.trainable.embedding) {
    ops::embed(residual_, ops::trainable_rows(table), table.dtype(), all, config_.dim);
  } else {
    source_->embed(all, residual_);
  }
  if (const float scale = config_.embedding.scale_in(options_.dtype); scale != 1)
    ops::rms_norm(residual(), residual(), nullptr, 0, exec_.stream(), {.scale = scale});
}

void Transformer::embed_tokens(std::span<const int32_t> tokens) {
  if (!exec_.on_gpu()) return embed(tokens.data());
  exec_.queue->copy_in(ids_, tokens.data(), tokens.size_bytes());
  embed(ids_);
}

void Transformer::turn_to(size_t i) {
  residual_ = prompt_residual_ + part_begin_[i] * config_.dim;
  n_rows_ = part_begin_[i + 1] - part_begin_[i];
  first_row_ = 0;
}

void Transformer::run_turn(size_t i) {
  residual_ = own_residual_ + part_begin_[i] * config_.dim;
  n_rows_ = part_begin_[i + 1] - part_begin_[i];
  first_row_ = part_begin_[i];
}

void Transformer::forward_by_layers(std::span<const std::span<const int32_t>> tokens,
                                    std::span<kv::Step> steps, kv::Cache& cache,
                                    const std::function<void(int layers)>& on_layer) {
  part_begin_ = {0};
  for (const kv::Step& step : steps) {
    TANDEM_CHECK(step.n_rows <= options_.max_rows, "{} rows exceed the limit of {}", step.n_rows,
                 options_.max_rows);
    part_begin_.push_back(part_begin_.back() + step.n_rows);
  }
  TANDEM_CHECK(tokens.size() == steps.size() && part_begin_.back() <= options_.max_prompt_rows,
               "{} rows in {} steps do not match the tokens or exceed {}", part_begin_.back(),
               steps.size(), options_.max_prompt_rows);
  for (size_t i = 0; i < steps.size(); ++i) {
    turn_to(i);
    embed_tokens(tokens[i]);
  }
  TANDEM_CHECK(!sets_, "layer-wise prefill is not supported with hot and cold neurons");
  begin_forward(ReadKind::all);
  const auto attend = [&](int layer, size_t i, const LayerWeights& w) {
    turn_to(i);
    enter(steps[i]);
    cache.begin_step(layer, steps, i);
    attention_block(layer, w, steps[i], cache, {});
  };
  const auto run_ffn = [&](int layer, size_t i, const LayerWeights& w) {
    turn_to(i);
    enter(steps[i]);
    ffn_block(layer, w, steps[i], {});
  };
  try {
    for (int layer = 0; layer < config_.n_layers; ++layer) {
      cache.residence().begin_layer(layer, steps);
      if (!streams(layer)) {
        for (size_t i = 0; i < steps.size(); ++i) {
          attend(layer, i, weights_.layers[static_cast<size_t>(layer)]);
          run_ffn(layer, i, weights_.layers[static_cast<size_t>(layer)]);
        }
      } else {  // each part stays for all steps
        with_part(layer, LayerPart::attention, [&](const LayerWeights& w) {
          for (size_t i = 0; i < steps.size(); ++i) attend(layer, i, w);
        });
        with_part(layer, LayerPart::ffn, [&](const LayerWeights& w) {
          for (size_t i = 0; i < steps.size(); ++i) run_ffn(layer, i, w);
        });
      }
      cache.residence().end_layer(layer, steps);
      on_layer(layer + 1);
    }
    cache.residence().end_prompts();
  } catch (...) {
    cache.residence().give_up_prompts();
    throw;
  }
}

void Transformer::enter(const kv::Step& step) {
  if (side_ != nullptr) side_->enter(step);
}

SideProducts* Transformer::side_of(int layer, Role of) const {
  return side_ != nullptr && side_->changes(layer, of) ? side_ : nullptr;
}

void Transformer::begin_forward(ReadKind kind) {
  if (weights_.stream) weights_.stream->begin_forward(*exec_.queue, kind);
}

bool Transformer::streams(int layer) const {
  return weights_.stream && std::ranges::any_of(kLayerParts, [&](LayerPart part) {
           return weights_.stream->holds(layer, part);
         });
}

void Transformer::with_part(int layer, LayerPart part,
                            const std::function<void(const LayerWeights&)>& run) {
  LayerStream* stream = weights_.stream.get();
  if (stream == nullptr || !stream->holds(layer, part))
    return run(weights_.layers[static_cast<size_t>(layer)]);
  run(stream->acquire(*exec_.queue, layer, part));
  stream->release(*exec_.queue);
}

void Transformer::run_layers(const kv::Step& step, kv::Cache& cache,
                             std::span<const LayerActivations> kept) {
  begin_forward(read_kind(step));
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    const LayerActivations to =
        kept.empty() ? LayerActivations{} : kept[static_cast<size_t>(layer)];
    with_part(layer, LayerPart::attention,
              [&](const LayerWeights& w) { attention_block(layer, w, step, cache, to); });
    if (sets_)
      divided_ffn(layer, step);
    else
      with_part(layer, LayerPart::ffn,
                [&](const LayerWeights& w) { ffn_block(layer, w, step, to); });
  }
}

LayerActivations Transformer::shared_activations() const {
  const auto bytes = [&](int64_t cols) {
    return static_cast<size_t>(n_rows_ * cols) * dtype_bytes(options_.dtype);
  };
  // Of the rows that go side by side each has its share: one's queries are alive in another's FFN.
  char* const block =
      block_ + static_cast<size_t>(first_row_) * block_row_bytes(config_, options_.dtype);
  char* const q = block + bytes(config_.q_dim() + 2 * int64_t{config_.kv_dim()});
  return {.qkv = block,
          .q = q,
          .attended = q + bytes(config_.q_dim()),
          .gate_up = block,
          .ffn = block + bytes(2 * int64_t{config_.ffn_dim})};
}

void Transformer::keep(void* to, const float* rows) {
  if (to == nullptr) return;
  ops::convert(to, options_.dtype, rows, DType::f32, n_rows_ * config_.dim, exec_.stream());
}

void Transformer::run_again(int layer, const kv::Step& step, kv::Cache& cache,
                            const LayerActivations& to, bool from_middle) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  ops::convert(residual_, DType::f32, from_middle ? to.residual_mid : to.residual_in,
               options_.dtype, n_rows_ * config_.dim, exec_.stream());
  if (!from_middle) attention_block(layer, w, step, cache, to);
  poll(options_.interrupted);
  if (!from_middle) keep(to.residual_mid, residual_);
  normed_linear(layer, Role::gate_up, gate_up_at(to.gate_up), norms(layer).ffn, w[Role::gate_up]);
}

Tensor Transformer::gate_up_at(void* place) const {
  return act(place, n_rows_, 2 * int64_t{config_.ffn_dim});
}

void Transformer::normed_linear(int layer, Role of, const Tensor& y, const float* norm,
                                const ops::PackedWeights& w, void* kept) {
  const Tensor x(residual_, DType::f32, {n_rows_, config_.dim}, options_.device);
  const auto eps = static_cast<float>(config_.rms_eps);
  const ops::LinearFusion fusion{.norm_weight = norm, .norm_eps = eps};
  SideProducts* const side = side_of(layer, of);
  if (side == nullptr && kept == nullptr && fuses(w, n_rows_, fusion))
    return ops::linear_fused(y, x, fusion, w, ops::Accumulate::no, exec_.stream());
  const Tensor normed = act(kept != nullptr ? kept : normed_, n_rows_, config_.dim);
  ops::rms_norm(normed, x, norm, eps, exec_.stream());
  ops::linear(y, normed, w, ops::Accumulate::no, workspace_, exec_.stream());
  if (side != nullptr) side->add(layer, of, y, normed, {});
}

Transformer::StreamTarget Transformer::stream_target(int layer, Role of, int64_t rows,
                                                     bool in_parts) const {
  const bool divided = config_.layers_divided, branch = config_.layer(layer).has_branch();
  if (divided && in_parts && options_.dtype == DType::bf16)
    if (const Tensor parts = exec_.comm->parts(of == Role::o ? 0 : 1, rows, config_.dim);
        !parts.empty())
      return {parts, ops::Accumulate::no};
  return {
      {branch ? branch_ : residual_, DType::f32, {rows, config_.dim}, options_.device},
      branch || (divided && exec_.comm->rank() > 0) ? ops::Accumulate::no : ops::Accumulate::yes};
}

void Transformer::into_stream(int layer, Role of, const Tensor& x, const StreamProduct& product,
                              void* kept) {
  const bool whole = !x.empty();
  SideProducts* const side = whole ? side_of(layer, of) : nullptr;
  const Tensor apart = side == nullptr ? Tensor{} : side->apart(layer, of, n_rows_);
  // All ranks add in one way, whichever have something of an adapter in this matrix.
  const auto [y, accumulate] = stream_target(layer, of, n_rows_, whole && side_ == nullptr);
  const bool is_apart = !apart.empty(), branch = config_.layer(layer).has_branch();
  const Tensor to =
      branch ? Tensor(branch_, DType::f32, {n_rows_, config_.dim}, options_.device) : residual();
  const bool in_parts = y.raw() != to.raw();
  if ((is_apart && accumulate == ops::Accumulate::no) || (in_parts && branch))
    ops::clear(to.as<float>(), to.elements(), exec_.stream());
  product(is_apart ? apart : y, is_apart ? ops::Accumulate::no : accumulate);
  if (side != nullptr) side->add(layer, of, is_apart ? apart : y, x, is_apart ? y : Tensor{});
  if (in_parts)
    exec_.comm->add_parts(to, y, exec_.stream());
  else if (config_.layers_divided)
    exec_.comm->sum(y, exec_.stream());
  if (!branch) return;
  keep(kept, branch_);
  const LayerNorms& n = norms(layer);
  ops::rms_norm(residual(), to, of == Role::o ? n.attn_post : n.ffn_post,
                static_cast<float>(config_.rms_eps), exec_.stream(),
                {.scale = config_.layer(layer).residual, .adds = true});
}

void Transformer::into_stream(int layer, Role of, const Tensor& x, const ops::PackedWeights& w,
                              void* kept) {
  into_stream(
      layer, of, x,
      [&](const Tensor& y, ops::Accumulate accumulate) {
        ops::linear(y, x, w, accumulate, workspace_, exec_.stream());
      },
      kept);
}

Tensor Transformer::heads_at(void* place) const {
  return {place, options_.dtype, {n_rows_, config_.n_heads, config_.head_dim}, options_.device};
}

void Transformer::attention_block(int layer, const LayerWeights& w, const kv::Step& step,
                                  kv::Cache& cache, const LayerActivations& to) {
  const LayerActivations shared = shared_activations();
  project(layer, w, step, cache, to);
  cache.attend(layer, step, heads_at(to.attended ? to.attended : shared.attended),
               heads_at(to.q ? to.q : shared.q), to.lse);
  add_attended(layer, w, to);
}

void Transformer::attention_begin(int layer, const LayerWeights& w, const kv::Step& step,
                                  kv::Cache& cache) {
  const LayerActivations shared = shared_activations();
  project(layer, w, step, cache, {});
  cache.attend_begin(layer, step, heads_at(shared.attended), heads_at(shared.q));
}

void Transformer::attention_end(int layer, const LayerWeights& w, const kv::Step& step,
                                kv::Cache& cache) {
  cache.attend_end(layer, step, heads_at(shared_activations().attended));
  add_attended(layer, w, {});
}

void Transformer::project(int layer, const LayerWeights& w, const kv::Step& step, kv::Cache& cache,
                          const LayerActivations& to) {
  const int64_t qkv_dim = config_.q_dim() + 2 * int64_t{config_.kv_dim()};
  const LayerActivations shared = shared_activations();
  const Tensor qkv = act(to.qkv ? to.qkv : shared.qkv, n_rows_, qkv_dim);

  poll(options_.interrupted);
  keep(to.residual_in, residual_);
  normed_linear(layer, Role::qkv, qkv, norms(layer).attn, w[Role::qkv], to.normed_in);
  ops::HeadNorms heads_normed;
  if (config_.qk_norm() == QkNorm::head)
    heads_normed = {norms(layer).q, norms(layer).k, static_cast<float>(config_.rms_eps)};
  const kv::LayerKeys keys = cache.keys(layer, step);
  ops::rope_kv({.q = heads_at(to.q ? to.q : shared.q),
                .k_pool = keys.k,
                .v_pool = keys.v,
                .qkv = with_row_norms(layer, qkv),
                .rope = ops::rope_at(ropes_, config_.layer(layer).attention.rope),
                .step = keys.step,
                .norms = heads_normed},
               exec_.stream());
  poll(options_.interrupted);
}

Tensor Transformer::with_row_norms(int layer, const Tensor& qkv) {
  if (config_.qk_norm() != QkNorm::row) return qkv;
  const ModelConfig& c = config_;
  const bool divided = c.layers_divided;
  const ops::RowNorms row_norms{.q = norms(layer).q,
                                .k = norms(layer).k,
                                .eps = static_cast<float>(c.rms_eps),
                                .q_dim = c.q_dim(),
                                .kv_dim = c.kv_dim(),
                                .q_all = (divided ? c.all_heads : c.n_heads) * c.head_dim,
                                .k_all = (divided ? c.all_kv_heads : c.n_kv_heads) * c.head_dim,
                                .first_k = c.repeats_kv_head ? c.head_dim : 0};
  const Tensor squares(squares_, DType::f32, {n_rows_, 2}, options_.device);
  ops::qk_squares(squares, qkv, row_norms, exec_.stream());
  if (divided) exec_.comm->sum(squares, exec_.stream());
  // A projection that is kept stays as it is.
  const Tensor normed = act(shared_activations().qkv, n_rows_, qkv.row_size());
  ops::row_norms(normed, qkv, squares, row_norms, exec_.stream());
  return normed;
}

void Transformer::add_attended(int layer, const LayerWeights& w, const LayerActivations& to) {
  poll(options_.interrupted);
  void* const attended = to.attended ? to.attended : shared_activations().attended;
  into_stream(layer, Role::o, act(attended, n_rows_, config_.q_dim()), w[Role::o], to.o_out);
}

void Transformer::logits(const Tensor& out, const int32_t* rows) {
  logits_of(out, {residual_, DType::f32, {n_rows_, config_.dim}, options_.device}, rows);
}

void Transformer::logits_from(const Tensor& out, int64_t first) {
  TANDEM_CHECK(first + out.rows() <= n_rows_, "logits of rows {} to {} exceed {} rows", first,
               first + out.rows(), n_rows_);
  const Tensor all(residual_, DType::f32, {n_rows_, config_.dim}, options_.device);
  logits_of(out, all.slice(first, out.rows()), nullptr);
}

void Transformer::logits_of(const Tensor& out, const Tensor& residual, const int32_t* rows) {
  TANDEM_CHECK(out.rows() <= options_.max_logit_rows, "{} rows of logits exceed the limit of {}",
               out.rows(), options_.max_logit_rows);
  const Tensor normed = act(head_in_, out.rows(), config_.dim);
  ops::rms_norm_of(normed, residual, rows, weights_.out_norm, static_cast<float>(config_.rms_eps),
                   exec_.stream(), {.scale = config_.head.scale});
  if (exec_.comm == nullptr)
    return ops::linear(out, normed, weights_.lm_head, ops::Accumulate::no, workspace_,
                       exec_.stream());
  const int64_t n = out.rows(), width = config_.vocab_rows;
  const Tensor all(logit_parts_, DType::f32, {exec_.comm->size(), n, width}, options_.device);
  const Tensor own = all.slice(exec_.comm->rank(), 1);
  ops::linear({own.raw(), DType::f32, {n, width}, options_.device}, normed, weights_.lm_head,
              ops::Accumulate::no, workspace_, exec_.stream());
  exec_.comm->gather(all.raw(), own.bytes(), exec_.stream());
  ops::join_columns(out, all, exec_.stream());
}

}  // namespace tandem::model
