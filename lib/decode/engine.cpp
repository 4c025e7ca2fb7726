#include "decode/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/divide_up.h"
#include "ranks/device_comm.h"
#include "tensor/driver_memory.h"

namespace tandem::decode {
namespace {

/// Code and tables that the first tokens bring into memory after the plan: pages of the program and
/// of libm. They take 600 to 950 KiB, of which buffers that are not used whole leave room for a
/// part.
constexpr size_t kLaterCode = size_t{512} << 10;

/// Shapes of a model's weights: query, key and value, output, gate and up, down, head.
constexpr size_t kProductShapes = 5;

/// Rows of any forward: a prefill chunk, or one token of every sequence.
int max_rows(const EngineSpec& s) {
  return static_cast<int>(
      std::max<int64_t>(std::min<int64_t>(s.prefill_chunk, s.total_tokens), s.max_seqs));
}

/// True if prompts go through the model layer by layer, as offloaded and quantized keys need.
bool by_layers(const EngineSpec& s) {
  return s.prefill_order == recipe::PrefillOrder::layers ||
         std::ranges::any_of(s.caches,
                             [](const auto& c) { return c.is_hosted() || c.is_quantized(); });
}

/// Rows of prompts that go through the layers together: the longest prompt, or whole forwards of
/// it; several prompts where they are shorter.
int64_t prompt_rows(const EngineSpec& s) {
  const int64_t longest = std::min<int64_t>(s.max_tokens, s.total_tokens), chunk = max_rows(s);
  // A second pass would read quantized keys of the first one.
  const bool quantized = std::ranges::any_of(s.caches, &recipe::Cache::is_quantized);
  const int passes = quantized ? 1 : s.savings.prompt_passes;
  const int64_t pass = divide_up(divide_up(longest, passes), chunk) * chunk;
  return std::max(std::min(pass, longest), chunk);
}

/// On the CPU, rows of weights that are written again.
model::Trainable trainable_of(const EngineSpec& s) {
  if (s.adapters != AdapterUse::switched || s.device.kind == Device::Kind::cuda) return {};
  return {.from = 0};
}

model::Transformer::Options model_options(const EngineSpec& s) {
  return {.dtype = s.compute,
          .max_rows = max_rows(s),
          .max_logit_rows = std::max(s.max_logit_rows, s.max_seqs),
          .max_prompt_rows = by_layers(s) ? prompt_rows(s) : 0,
          .max_position = s.max_tokens,
          .longest = s.longest,
          .interrupted = s.interrupted,
          .device = s.device,
          .n_streamed = s.savings.n_streamed,
          .trainable = trainable_of(s),
          .host_embedding = s.savings.host_embedding,
          // A switch writes columns of w_down, which so are rows.
          .by_channel = !s.sparse.empty() ||
                        (s.adapters == AdapterUse::switched && s.device.kind == Device::Kind::cuda),
          .set_channels = s.savings.set_channels,
          .rewritten = s.adapters == AdapterUse::switched,
          .n_ranks = s.n_ranks};
}

ffn::Channels::Spec channels_spec(const EngineSpec& s, const ModelFiles& files) {
  const model::ModelConfig& c = files.config;
  return {.shape = {.n_layers = c.n_layers, .dim = c.dim, .ffn_dim = c.ffn_dim, .dtype = s.compute},
          .max_seqs = s.max_seqs,
          .device = s.device,
          .policies = s.sparse,
          .fingerprint = files.fingerprint};
}

/// errors   kind recipe
void check_sparse(const EngineSpec& s, const model::ModelConfig& model) {
  if (!s.sparse.empty() && s.device.kind == Device::Kind::cuda &&
      !is_fused(model.kinds.front().ffn.gate))
    throw recipe_error("sparse.kind",
                       "is {}, but the activation of {} is not supported with it on a GPU",
                       recipe::yaml_text(s.sparse.front().kind), model.name);
  const auto learns = [](const recipe::Sparse& p) { return ffn::needs_of(p).prompts; };
  const auto cuts = [](const recipe::Cache& c) { return kv::needs_of(c).reads_prompts; };
  if (std::ranges::any_of(s.sparse, learns) && std::ranges::any_of(s.caches, cuts))
    throw recipe_error("cache.prefill",
                       "is windowed, which does not measure the FFN neurons that a prompt uses")
        .hint(
            "set cache.prefill to dense, or choose a sparse.kind that needs no prompt statistics: "
            "magnitude, cats without weighted, or cats_threshold");
  const bool divides = s.savings.set_channels > 0;
  if (divides && by_layers(s))
    throw recipe_error("model.offload",
                       "splits FFN neurons between GPU and host memory: layer-wise prefill, which "
                       "needs all of a layer on the GPU, is not supported")
        .hint("set run.prefill_order to chunks and cache.place to device, or remove draft.sparse");
  if (s.savings.n_streamed > 0 && std::ranges::any_of(s.sparse, [](const recipe::Sparse& p) {
        return ffn::needs_of(p).after_gate || ffn::needs_of(p).checks;
      }))
    throw recipe_error("model.offload",
                       "copies layers from host memory before a step: a sparse.kind that chooses "
                       "neurons within steps, or sparse.refresh, is not supported")
        .hint("set sparse.kind to griffin without refresh, or model.offload to none");
  if (s.savings.n_streamed > 0 && std::ranges::any_of(s.sparse, &ffn::reads_weights))
    throw recipe_error(
        "model.offload",
        "keeps layers in host memory: sparse.kind magnitude and sparse.weighted, which "
        "read all FFN weights, are not supported")
        .hint("set model.offload to none, or choose another sparse.kind");
}

model::ServedAdapters::Spec served_spec(const EngineSpec& s, const ModelFiles& files) {
  return {.config = files.config,
          .dtype = s.compute,
          .device = s.device,
          .max_seqs = s.max_seqs,
          .max_rows = max_rows(s),
          .max_run = std::min(max_rows(s), s.max_tokens),
          .adapters = files.adapters};
}

model::AdapterSwitch::Spec switch_spec(const EngineSpec& s, const ModelFiles& files) {
  return {
      .config = files.config, .dtype = s.compute, .device = s.device, .adapters = files.adapters};
}

/// errors   kind recipe
void check_adapters(const EngineSpec& s, const ModelFiles& files) {
  if (files.adapters.empty()) return;
  const std::string& name = files.adapters.front().name;
  if (s.adapters == AdapterUse::none)
    throw recipe_error("model.adapters",
                       "'{}' has a name, but this tool has no prompts that can select an adapter",
                       name)
        .hint("omit the adapter's name to merge it into the weights");
  if (!s.sparse.empty())
    throw recipe_error("model.adapters",
                       "'{}' is a named adapter, which is not supported with sparse", name)
        .hint("omit the adapter's name to merge it into the weights");
  if (s.adapters == AdapterUse::switched && s.savings.n_streamed > 0)
    throw recipe_error(
        "run.adapters",
        "switch writes to weights on the GPU, but model.offload keeps layers in host memory")
        .hint("set run.adapters to mix, or model.offload to none");
}

/// Of a sum over ranks, at most.
int64_t part_numbers(const EngineSpec& s, const model::ModelConfig& c) {
  return s.compute == DType::bf16 ? int64_t{max_rows(s)} * c.dim : 0;
}

constexpr const char* kLogits = "activations/logits";
constexpr const char* kLogitRows = "activations/logit rows";

SamplerBounds sampler_bounds(const EngineSpec& s, const model::ModelConfig& c) {
  return {
      .max_seqs = s.max_seqs, .max_tokens = s.max_tokens, .vocab = c.vocab_size, .gpu = gpu_of(s)};
}

/// With what `auto` leaves to the engine decided.
std::vector<recipe::Cache> caches_of(const EngineSpec& s) {
  std::vector<recipe::Cache> caches = s.caches;
  for (recipe::Cache& c : caches)
    if (c.is_hosted() && c.resident_layers.automatic())
      c.resident_layers = {s.savings.resident_layers};
  return caches;
}

kv::Cache::Spec cache_spec(const EngineSpec& s, const model::ModelConfig& c) {
  return {.geometry = model::geometry_of(c, s.compute),
          .max_seqs = s.max_seqs,
          .max_prompts = s.max_prompts,
          .max_drafted = s.max_drafted,
          .max_extended = s.max_extended,
          .max_tokens = s.max_tokens,
          .total_tokens = s.total_tokens,
          .max_appended = s.max_appended,
          .max_rows = max_rows(s),
          .max_prompt_rows = static_cast<int>(model_options(s).max_prompt_rows),
          .max_extend_rows = s.max_extend_rows,
          .max_draft_rows = s.max_draft_rows,
          .max_tree_rows = s.max_tree_rows,
          .ring_eighths = s.savings.ring_eighths,
          .policies = caches_of(s),
          .channels = s.channels,
          .device = s.device,
          .multiprocessors = gpu_of(s).multiprocessors,
          .block_shared_bytes = gpu_of(s).block_shared_bytes,
          .interrupted = s.interrupted};
}

}  // namespace

std::string Savings::text(int n_layers) const {
  std::vector<std::string> all;
  if (host_embedding) all.emplace_back("embedding in host memory");
  if (prompt_passes > 1)
    all.push_back(fmt::format("layer-wise prefill in {} passes", prompt_passes));
  if (set_channels > 0) {
    const model::StreamedParts parts =
        model::streamed_parts(n_layers, {.n_streamed = n_streamed, .set_channels = set_channels});
    std::string text = fmt::format("FFN neurons beyond {} in {} layers", set_channels, parts.rest);
    if (parts.ffn > 0) text += fmt::format(", all of {}", parts.ffn);
    if (parts.attention > 0) text += fmt::format(", attention of {}", parts.attention);
    all.push_back(text + " in host memory");
  } else if (n_streamed > 0) {
    all.push_back(fmt::format("{} of {} layers offloaded to host memory", n_streamed, n_layers));
  }
  if (resident_layers > 0)
    all.push_back(fmt::format("KV cache of {} layers on the GPU", resident_layers));
  if (ring_eighths < kWholeRing)
    all.push_back(fmt::format("KV staging ring of 1 {}/8 layers", ring_eighths));
  return fmt::format("{}", fmt::join(all, ", "));
}

cuda::Gpu gpu_of(const EngineSpec& s) {
  if (s.device.kind != Device::Kind::cuda) return {};
  if (!s.plan_for) return cuda::gpu_of(s.device.index);
  constexpr int kHopper = 90;
  return {.isa = s.plan_for->capability == kHopper ? cuda::GpuIsa::hopper : cuda::GpuIsa::portable,
          .multiprocessors = s.plan_for->multiprocessors,
          .block_shared_bytes = s.plan_for->block_shared_bytes};
}

MemoryPlan Engine::plan(const ModelFiles& files, const EngineSpec& spec) {
  const auto cuts = [](const auto& c) { return kv::needs_of(c).reads_prompts; };
  if (spec.prefill_order == recipe::PrefillOrder::layers && std::ranges::any_of(spec.caches, cuts))
    throw recipe_error("run.prefill_order",
                       "is layers, but cache.prefill windowed evicts keys during prefill")
        .hint("set run.prefill_order to chunks, or cache.prefill to dense");
  check_sparse(spec, files.config);
  check_adapters(spec, files);
  // The program's own lines below count what that loads: on a GPU the driver and cuBLASLt, of
  // whose host memory a plan for one that is not here knows nothing.
  if (!spec.plan_for) ops::warm_up_linear(spec.compute, spec.device);
  MemoryPlan plan;
  plan.add(kProgramItem,
           resident_bytes() + kLaterCode + ops::product_library_bytes(spec.compute, spec.device));
  plan.add("process/code of products",
           ops::product_code_bytes(spec.compute, spec.device, kProductShapes, spec.row_counts));
  model::Transformer::plan(files.config, model_options(spec), plan);
  const auto rows = static_cast<size_t>(model_options(spec).max_logit_rows);
  plan.add(kLogits, rows * static_cast<size_t>(files.config.vocab_size) * sizeof(float),
           spec.device);
  if (spec.device.kind == Device::Kind::cuda)
    plan.add(kLogitRows, rows * sizeof(int32_t), spec.device);
  const kv::Cache::Spec cache = cache_spec(spec, files.config);
  kv::Cache::plan(cache, plan);
  if (!spec.sparse.empty()) ffn::Channels::plan(channels_spec(spec, files), plan);
  if (spec.adapters == AdapterUse::mix) model::ServedAdapters::plan(served_spec(spec, files), plan);
  if (spec.adapters == AdapterUse::switched)
    model::AdapterSwitch::plan(switch_spec(spec, files), plan);
  Sampler::plan(sampler_bounds(spec, files.config), spec.device, plan);
  if (spec.n_ranks > 1 && spec.device.kind == Device::Kind::cuda) {
    plan.add(kNcclItem, ranks::DeviceComm::kNcclBytes, spec.device);
    plan.add("process/memory that ranks share",
             ranks::DeviceComm::inbox_bytes(spec.n_ranks) +
                 ranks::DeviceComm::part_bytes(part_numbers(spec, files.config)),
             spec.device);
  }
  size_t pinned = kv::Cache::pinned_bytes(cache, plan);  // of a run on a GPU
  for (const char* group : {"weights", "embedding"}) pinned += plan.group_bytes(group, {});
  plan_driver(spec.device, spec.compute, !spec.plan_for, pinned, plan);
  return plan;
}

Engine::Engine(ModelFiles files, const EngineSpec& spec,
               const std::function<void(double share)>& on_load, std::shared_ptr<cuda::Queue> queue)
    : spec_(spec),
      files_(std::move(files)),
      queue_(queue == nullptr && spec.device.kind == Device::Kind::cuda
                 ? std::make_shared<cuda::Queue>(spec.device.index)
                 : std::move(queue)),
      exec_{queue_.get(), spec.comm.get()},
      arena_(plan(files_, spec_)),
      model_(files_.config, model_options(spec_), std::move(files_.source), arena_, on_load, exec_),
      cache_(cache_spec(spec_, files_.config), arena_, model_.ropes(), exec_),
      sampler_(sampler_bounds(spec_, files_.config), arena_, exec_),
      logits_(arena_.take(kLogits), DType::f32,
              {model_.options().max_logit_rows, files_.config.vocab_size}, exec_.device()) {
  if (exec_.on_gpu()) rows_ = static_cast<int32_t*>(arena_.take(kLogitRows));
  if (spec_.comm) spec_.comm->reserve_parts(part_numbers(spec_, files_.config));
  if (!spec_.sparse.empty()) {
    // Ranks with whole layers have all channels of a row.
    const Exec exec{queue_.get(), files_.config.layers_divided ? exec_.comm : nullptr};
    channels_ = std::make_unique<ffn::Channels>(channels_spec(spec_, files_), arena_, exec);
    model_.read_by(*channels_);
    cache_.notify(channels_.get());
  }
  if (spec_.adapters == AdapterUse::mix) {
    served_ = std::make_unique<model::ServedAdapters>(served_spec(spec_, files_), model_.source(),
                                                      arena_, exec_);
    model_.attach(served_.get());
    cache_.notify(served_.get());
  }
  if (spec_.adapters == AdapterUse::switched)
    switch_ = std::make_unique<model::AdapterSwitch>(switch_spec(spec_, files_), model_.source(),
                                                     model_.weights(), arena_, exec_);
  TANDEM_CHECK(!spec_.plan_for, "an engine cannot run on a GPU that is only planned for");
}

std::string_view Engine::rope_factors() const {
  const ops::RopeSpec& rope = files_.config.ropes.front();
  if (rope.scaling.kind != ops::RopeScalingKind::longrope ||
      rope.scaling.short_factors == rope.scaling.long_factors)
    return {};
  return ops::is_long(rope, spec_.longest > 0 ? spec_.longest : spec_.max_tokens) ? "long"
                                                                                  : "short";
}

void Engine::use_adapter(int slot, int adapter) {
  if (served_) return served_->assign(slot, adapter);
  TANDEM_CHECK(adapter == switched_adapter(), "adapter {} was requested, but {} is in the weights",
               adapter, switched_adapter());
}

size_t Engine::adapter_bytes(int adapter) const {
  return served_ ? served_->bytes(adapter) : switch_ ? switch_->bytes(adapter) : 0;
}

void Engine::switch_adapter(int adapter) {
  TANDEM_CHECK(switch_ != nullptr, "this engine does not switch adapters");
  switch_->to(adapter);
}

kv::Step Engine::run(kv::Phase phase, std::span<const SeqTokens> sequences, int64_t logit_rows) {
  std::vector<kv::SeqRows> rows;
  tokens_.clear();
  for (const SeqTokens& s : sequences) {
    rows.push_back({s.slot, static_cast<int>(s.tokens.size()), s.ends_prompt});
    tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
  }
  choose_products(static_cast<int64_t>(tokens_.size()), logit_rows);
  if (phase == kv::Phase::prefill && cache_.residence().facts().by_layers) {
    const std::vector<kv::SeqRows> all[] = {rows};
    std::vector<kv::Step> steps = cache_.begin_prompts(all);
    const std::span<const int32_t> tokens[] = {tokens_};
    model_.forward_by_layers(tokens, steps, cache_, [](int) {});
    cache_.commit(steps[0]);
    return std::move(steps[0]);
  }
  kv::Step step = cache_.begin({.phase = phase, .rows = rows});
  model_.forward(tokens_, step, cache_);
  cache_.commit(step);
  return step;
}

Tensor Engine::extend(std::span<const SeqTokens> sequences) {
  // Sequences of many rows begin alone, so that all end in one step.
  const auto most = static_cast<size_t>(cache_.max_extend_rows_a_seq());
  std::vector<SeqTokens> last(sequences.begin(), sequences.end());
  for (SeqTokens& s : last)
    for (; s.tokens.size() > most; s.tokens = s.tokens.subspan(most)) {
      const SeqTokens part{s.slot, s.tokens.first(most), false};
      run(kv::Phase::extend, {&part, 1}, 1);
    }
  const kv::Step step = run(kv::Phase::extend, last, static_cast<int64_t>(last.size()));
  std::vector<int32_t> last_rows;
  for (int b = 0; b < step.n_seqs; ++b)
    last_rows.push_back(step.row_begin[static_cast<size_t>(b) + 1] - 1);
  return on_host(logits(last_rows));
}

void Engine::decode(std::span<const DrawSeq> sequences) {
  const int n = places(static_cast<int>(sequences.size()), 1);
  if (!graph_spec_.is_equal_but_for_seed(sampler_.spec())) {
    if (!decode_graphs_.empty()) queue_->wait();  // for those that may still run
    decode_graphs_.clear();
    graph_spec_ = sampler_.spec();
  }
  const bool recorded = exec_.on_gpu() && is_recordable();
  const std::vector<kv::Step> steps = begin_decode(sequences, n, recorded);
  for (const kv::Step& step : steps) choose_products(step.padded_rows(), n);
  sampler_.send(sequences, n);
  const auto work = [&] {
    model_.forward_ids(sampler_.load_ids(), steps, cache_);
    const Tensor logits = logits_.slice(0, n);
    model_.logits_from(logits, 0);
    sampler_.launch(logits);
  };
  if (!recorded) {
    // A graph ends with all its work, copies for the next step too. Launching kernels one by one
    // costs nothing beside those copies.
    work();
  } else {
    std::unique_ptr<cuda::Graph>& graph =
        decode_graphs_[{steps[0].reading.keys, steps[0].reading.channels, n}];
    if (!graph) graph = std::make_unique<cuda::Graph>(*queue_, work);
    graph->launch(*queue_);
    cache_.serve(steps);
  }
  sampler_.finish(static_cast<int>(sequences.size()));
  for (const kv::Step& step : steps) cache_.commit(step);
}

std::vector<kv::Step> Engine::begin_decode(std::span<const DrawSeq> sequences, int n,
                                           bool recorded) {
  // Where the host serves steps, the products of one half go on while it attends to the other's.
  const size_t all = sequences.size();
  const size_t halves = recorded && cache_.serves_steps() && all > 1 ? kv::Cache::kMicroBatches : 1;
  Outbox& outbox = sampler_.open();
  std::vector<kv::Step> steps;
  for (size_t i = 0, at = 0; i < halves; ++i) {
    std::vector<kv::SeqRows> rows;
    const size_t before = at;
    for (; at < (i + 1 < halves ? (all + 1) / 2 : all); ++at)
      rows.push_back({sequences[at].slot, 1, true});
    steps.push_back(cache_.begin({.rows = rows,
                                  .outbox = &outbox,
                                  .places = halves > 1 ? static_cast<int>(at - before) : n,
                                  .micro_batch = static_cast<int>(i),
                                  .rows_before = static_cast<int>(before)}));
  }
  return steps;
}

size_t Engine::streamed_bytes(const kv::Reading& reading) const {
  const model::Weights& w = model_.weights();
  const bool reads_sets = reading.channels > 0 && model_.sets() != nullptr;
  if (!w.stream) return 0;
  return w.stream->bytes(reads_sets ? model::ReadKind::set : model::ReadKind::all);
}

double Engine::weight_bytes(const kv::Reading& reading) const {
  const model::Weights& w = model_.weights();
  const auto all = static_cast<double>(w.bytes());
  if (reading.channels == 0) return all;
  const ffn::Policy& policy = channels_->policy(reading.channels);
  const double left = 1 - policy.expected_channels() / config().ffn_dim;
  const auto gate_up = static_cast<double>(w.gate_up_bytes());
  return all - left * ((policy.needs().after_gate ? 0.5 : 1) * gate_up +
                       static_cast<double>(w.down_bytes()));
}

Tensor Engine::logits(std::span<const int32_t> rows) { return logits(0, rows); }

Tensor Engine::logits(int64_t first, std::span<const int32_t> rows) {
  const auto n = static_cast<int64_t>(rows.size());
  TANDEM_CHECK(first + n <= logits_.rows(), "{} logit rows exceed the limit of {}", first + n,
               logits_.rows());
  const Tensor out = logits_.slice(first, n);
  if (exec_.on_gpu()) exec_.queue->copy_in(rows_, rows.data(), rows.size_bytes());
  model_.logits(out, exec_.on_gpu() ? rows_ : rows.data());
  return out;
}

int Engine::places(int n, int rows_each) const {
  // Halves of a batch that the host serves stand side by side, without places between them.
  if (!exec_.on_gpu() || cache_.serves_steps()) return n;
  return kv::places_for(n, rows_each, std::max(n, room_for_places(rows_each, rows_each)));
}

int Engine::room_for_places(int rows_each, int logit_rows_each) const {
  const int most = spec_.max_extend_rows > 0 ? spec_.max_extend_rows : max_rows(spec_);
  return std::min({most / rows_each, max_rows(spec_) / rows_each,
                   model_.options().max_logit_rows / logit_rows_each, spec_.max_seqs});
}

void Engine::choose_products(int64_t rows, int64_t logit_rows) {
  model_.choose_products(rows);
  model_.choose_logit_products(logit_rows, logits_);
}

Tensor Engine::on_host(const Tensor& t) {
  if (!exec_.on_gpu() || t.device() != exec_.device()) return t;
  TANDEM_CHECK(t.dtype() == DType::f32 && t.rank() == 2, "expected a matrix of f32, found {}",
               dtype_name(t.dtype()));
  host_.resize(static_cast<size_t>(t.elements()));
  queue_->copy_out(host_.data(), t.raw(), t.bytes());
  queue_->wait();
  return {host_.data(), DType::f32, {t.rows(), t.row_size()}};
}

void Engine::forward_all(kv::Phase phase, std::span<const SeqTokens> sequences,
                         const std::function<void(int, const Tensor&)>& visit) {
  const int most = model_.options().max_logit_rows;
  size_t n = 0;
  for (const SeqTokens& s : sequences) n += s.tokens.size();
  if (phase == kv::Phase::extend && std::ranges::any_of(sequences, [&](const SeqTokens& s) {
        const bool listed = channels_of(s.slot) > 0;
        return std::ssize(s.tokens) > rows_together(s.slot) || (listed && sequences.size() > 1);
      }))
    return forward_parts(sequences, visit);
  choose_products(0, static_cast<int64_t>(n) % most);  // the last piece
  const kv::Step step = run(phase, sequences, std::min(static_cast<int64_t>(n), int64_t{most}));
  std::vector<int32_t> rows;
  for (int begin = 0; begin < step.n_rows; begin += static_cast<int>(rows.size())) {
    rows.clear();
    for (int r = begin; r < std::min(step.n_rows, begin + most); ++r) rows.push_back(r);
    visit(begin, on_host(logits(rows)));
  }
}

int Engine::channels_of(int slot) const {
  const auto reader = static_cast<size_t>(cache_.readers_of(slot).front());
  return reader < spec_.channels.size() ? spec_.channels[reader] : 0;
}

int Engine::rows_together(int slot) const {
  const int most = cache_.max_extend_rows_a_seq(), channels = channels_of(slot);
  if (channels == 0) return most;
  return channels_->policy(channels).needs().by_step ? 1 : std::min(most, ffn::kMaxRows);
}

void Engine::forward_parts(std::span<const SeqTokens> sequences,
                           const std::function<void(int, const Tensor&)>& visit) {
  int begin = 0;     // rows that were visited
  int64_t held = 0;  // rows after them whose logits are held
  const auto flush = [&] {
    if (held > 0) visit(begin, on_host(logits_.slice(0, held)));
    begin += static_cast<int>(held);
    held = 0;
  };
  std::vector<SeqTokens> parts;
  for (const SeqTokens& s : sequences)
    for (size_t at = 0, n = 0; at < s.tokens.size(); at += n) {
      n = std::min({static_cast<size_t>(rows_together(s.slot)), s.tokens.size() - at,
                    static_cast<size_t>(logits_.rows())});
      parts.push_back(
          {s.slot, s.tokens.subspan(at, n), s.ends_prompt && at + n == s.tokens.size()});
    }
  // Choices are timed on the rows of logits_, so all come before logits are held there.
  for (const SeqTokens& part : parts)
    choose_products(std::ssize(part.tokens), std::ssize(part.tokens));
  std::vector<int32_t> rows;
  for (const SeqTokens& part : parts) {
    const std::ptrdiff_t n = std::ssize(part.tokens);
    if (held + n > logits_.rows()) flush();
    run(kv::Phase::extend, {&part, 1}, n);
    rows.resize(static_cast<size_t>(n));
    std::iota(rows.begin(), rows.end(), 0);
    logits(held, rows);
    held += n;
  }
  flush();
}

}  // namespace tandem::decode
