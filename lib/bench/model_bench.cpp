#include "bench/model_bench.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include "base/clock.h"
#include "base/rng.h"

#include <nlohmann/json.hpp>

#include "bench/layer_bench.h"
#include "kv/fill_random.h"
#include "kv/policies/token_index.h"
#include "model/adapters/synthetic_adapter.h"
#include "model/spec/context.h"
#include "model/spec/work.h"

namespace tandem::bench {
namespace {

constexpr int kMaxBatch = 1 << 16;

/// The engine also holds one fork of each prompt, which owns its new tokens, whole pages of them.
decode::EngineSpec engine_spec(const ModelCase& c, const Interrupted& interrupted = {}) {
  decode::EngineSpec spec;
  spec.compute = c.dtype;
  spec.prefill_chunk = c.chunk;
  spec.prefill_order = c.order;
  spec.max_seqs = spec.max_prompts = c.batch;
  spec.max_extend_rows = c.batch;
  spec.max_tokens = c.max_tokens();
  spec.total_tokens = int64_t{c.batch} * c.max_tokens();
  if (c.bench.has(ModelPhase::decode)) {
    spec.max_seqs *= 2;
    spec.max_extended = c.batch;
    spec.max_appended = static_cast<int>(c.bench.new_tokens);
    if (c.bench.new_tokens.value > kv::TokenIndex::kMaxForkTokens) spec.max_prompts = 0;
    spec.total_tokens += int64_t{c.batch} * kPageTokens;
  }
  spec.caches = {c.cache};
  spec.device = c.device;
  spec.plan_for = c.plan_for;
  spec.savings = c.savings;
  spec.n_ranks = c.n_ranks;
  spec.comm = c.comm;
  spec.interrupted = interrupted;
  return spec;
}

/// Of prefill and decode.
decode::EngineSpec whole_spec(const ModelCase& c, const Interrupted& interrupted = {}) {
  decode::EngineSpec spec = engine_spec(c, interrupted);
  if (c.bench.adapters.n > 0) spec.adapters = decode::AdapterUse::mix;
  return spec;
}

decode::EngineSpec switch_spec(const ModelCase& c, const Interrupted& interrupted = {}) {
  decode::EngineSpec spec = engine_spec(c, interrupted);
  spec.adapters = decode::AdapterUse::switched;
  return spec;
}

}  // namespace

std::string_view phase_name(ModelPhase phase) {
  return enum_names(phase)[static_cast<size_t>(phase)];
}

bool ModelBench::has(ModelPhase phase) const {
  return std::find(phases.begin(), phases.end(), phase) != phases.end();
}

void ModelBench::check(recipe::Problems& p) const {
  for (size_t i = 0; i < phases.size(); ++i)
    if (std::find(phases.begin(), phases.begin() + static_cast<long>(i), phases[i]) !=
        phases.begin() + static_cast<long>(i))
      p.field("phases", "bench.phases: '{}' is listed twice", phase_name(phases[i]));
  if (has(ModelPhase::switching) && adapters.n < 2)
    p.field("adapters.n", "bench.adapters.n: a switch needs at least 2 adapters, found {}",
            adapters.n);
  if (adapters.n > 0 && adapters.kind == AdapterKind::s2ft &&
      adapters.o + adapters.up + adapters.down == 0)
    p.field("adapters.down",
            "bench.adapters: expected one of o, up and down above 0 for kind s2ft");
}

std::string AdapterBench::text() const {
  if (n == 0) return {};
  return fmt::format("{} {}", n, enum_names(kind)[static_cast<size_t>(kind)]);
}

nlohmann::ordered_json AdapterBench::json() const {
  nlohmann::ordered_json j = {
      {"n", n}, {"kind", recipe::yaml_text(kind)}, {"numbers", "synthetic"}};
  if (kind == AdapterKind::lora)
    j["rank"] = rank;
  else
    j.update({{"o", o}, {"up", up}, {"down", down}});
  return j;
}

void add_adapters(decode::ModelFiles& files, const ModelBench& bench, uint64_t seed) {
  const AdapterBench& a = bench.adapters;
  const model::SyntheticAdapter shape{.low_rank = a.kind == AdapterKind::lora,
                                      .o = a.o,
                                      .down = a.down,
                                      .up = a.up,
                                      .rank = a.rank};
  for (int i = 0; i < a.n; ++i)
    files.adapters.push_back(model::synthetic_adapter(shape, fmt::format("synthetic {}", i),
                                                      files.config, {files.name, files.fingerprint},
                                                      seed + static_cast<uint64_t>(i)));
}

int ModelCase::max_tokens() const {
  return context + (bench.has(ModelPhase::decode) ? static_cast<int>(bench.new_tokens) : 0);
}

MeasureRules ModelCase::rules() const {
  // Who asks for few runs has long ones: no more of them for warming up.
  MeasureRules rules{.min_runs = bench.min_runs, .min_seconds = bench.min_time};
  constexpr double kPatience = 5;
  rules.max_seconds = bench.max_time > 0 ? bench.max_time : kPatience * bench.min_time;
  rules.max_warmup = std::min(rules.max_warmup, bench.min_runs);
  rules.agree = agree_on_time;
  return rules;
}

ModelCase model_case(const ModelBench& bench, const recipe::Run& run, const recipe::Cache& cache,
                     recipe::Compute compute, const model::ModelConfig& config, Device device) {
  const int context =
      model::context_of(run, config, bench.has(ModelPhase::decode) ? bench.new_tokens.value : 0);
  if (run.batch > kMaxBatch)
    throw recipe_error("run.batch", "is {} sequences, but at most {} are supported", run.batch,
                       kMaxBatch);
  if (device.kind == Device::Kind::cuda &&
      (bench.has(ModelPhase::linear) || bench.has(ModelPhase::attention)))
    throw recipe_error("bench.phases",
                       "linear and attention are supported only on the CPU, found {}",
                       device.name())
        .hint("use --device cpu, or only the phases prefill and decode");
  ModelCase c{.bench = bench, .cache = cache};
  c.dtype = compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
  c.device = device;
  c.batch = std::max(1, run.batch);
  c.context = context;
  c.chunk = static_cast<int>(run.prefill_chunk);
  c.order = run.prefill_order;
  c.seed = static_cast<uint64_t>(run.seed);
  return c;
}

MemoryPlan phase_plan(ModelPhase phase, const ModelCase& c, const decode::ModelFiles& files) {
  switch (phase) {
    case ModelPhase::linear:
      return linear_plan(c, files.config);
    case ModelPhase::attention:
      return attention_plan(c, files.config);
    default:
      return decode::Engine::plan(files, phase_engine(phase, c));
  }
}

decode::EngineSpec phase_engine(ModelPhase phase, const ModelCase& c) {
  if (phase == ModelPhase::switching) return switch_spec(c);
  return phase == ModelPhase::load ? engine_spec(c) : whole_spec(c);
}

EngineBench::EngineBench(decode::ModelFiles files, const ModelCase& c,
                         const Interrupted& interrupted,
                         const std::function<void(double share)>& on_load)
    : case_(c), engine_(std::move(files), whole_spec(c, interrupted), on_load) {
  for (int b = 0; b < c.batch; ++b) {
    PhiloxStream draw(c.seed, static_cast<uint32_t>(b));
    std::vector<int32_t>& ids = tokens_.emplace_back();
    for (int i = 0; i < c.max_tokens(); ++i)
      ids.push_back(
          static_cast<int32_t>(draw.below(static_cast<uint32_t>(engine_.config().vocab_size))));
  }
}

void EngineBench::restart() {
  kv::Cache& cache = engine_.cache();
  for (std::vector<int>* slots : {&forks_, &prompts_}) {
    for (const int slot : *slots) cache.release(slot);
    slots->clear();
  }
  for (int b = 0; b < case_.batch; ++b) {
    prompts_.push_back(cache.create());
    if (case_.bench.adapters.n > 0)
      engine_.use_adapter(prompts_.back(), b % case_.bench.adapters.n);
  }
  prompts_read_ = false;
}

void EngineBench::read_prompts() {
  std::vector<decode::SeqTokens> sequences;
  for (size_t b = 0; b < prompts_.size(); ++b)
    sequences.push_back(
        {prompts_[b], std::span(tokens_[b]).first(static_cast<size_t>(case_.context)), true});
  n_forwards_ = 0;
  engine_.prefill(
      sequences,
      [&](std::span<const size_t>, const Tensor& logits) {
        (void)ops::logit_stats(engine_.on_host(logits));  // refuses logits without meaning
      },
      [&](int64_t) { return ++n_forwards_ > 0; });
  prompts_read_ = true;
}

PhaseResult EngineBench::prefill() {
  PhaseResult r{.phase = ModelPhase::prefill};
  r.samples = measure([&] { read_prompts(); }, case_.rules(), [&] { restart(); });
  const model::ModelConfig& config = engine_.config();
  const double linear = model::layer_flops(config) * case_.context + model::head_flops(config);
  const double attention =
      model::attention_flops(config, model::prefill_pairs(config, case_.context));
  r.tokens = static_cast<double>(case_.batch) * case_.context;
  r.work.flops = case_.batch * (linear + attention);
  r.work.host_bytes = static_cast<double>(engine_.streamed_bytes()) * n_forwards_;
  r.linear_share = linear / (linear + attention);
  return r;
}

void EngineBench::fork_prompts() {
  kv::Cache& cache = engine_.cache();
  for (const int slot : forks_) cache.release(slot);
  forks_.clear();
  for (const int slot : prompts_) {
    forks_.push_back(cache.fork(slot, 0));
    // Pages now, so that no step pays for copying the one they share.
    cache.store().reserve(forks_.back(), case_.max_tokens());
  }
}

/// A step as generation runs it, one ahead of the tokens that the host has seen: while steps follow
/// each other, the time between two of them is that of a step.
void EngineBench::decode_on_gpu(int length, Samples& host) {
  const Stopwatch watch;
  std::vector<decode::DrawSeq> sequences;
  for (size_t b = 0; b < forks_.size(); ++b)
    sequences.push_back(
        {.seq = static_cast<int>(b), .slot = forks_[b], .position = length, .tokens = {}});
  engine_.decode(sequences);
  host.ms.push_back(1e3 * watch.seconds());
  if (engine_.sampler().in_flight() >= engine_.sampler().depth()) (void)engine_.sampler().collect();
}

PhaseResult EngineBench::decode() {
  engine_.sampler().start({});
  if (case_.bench.random_kv || !prompts_read_) restart();
  if (case_.bench.random_kv)
    for (size_t b = 0; b < prompts_.size(); ++b)
      kv::fill_random(engine_.cache(), prompts_[b], case_.context, case_.seed + b);
  else if (!prompts_read_)
    read_prompts();

  PhaseResult r{.phase = ModelPhase::decode};
  std::vector<decode::SeqTokens> step(prompts_.size());
  double keys_sum = 0, n_steps = 0;  // what rows see, their own token included
  const double kv_before = engine_.cache().usage(0).bytes(),
               streamed_before = engine_.cache().residence().streamed_bytes();
  int length = case_.max_tokens();
  const auto begin = [&] {
    if (length == case_.max_tokens()) {
      fork_prompts();
      length = case_.context;
    }
    for (size_t b = 0; b < step.size(); ++b)
      step[b] = {forks_[b], std::span(tokens_[b]).subspan(static_cast<size_t>(length), 1), true};
    keys_sum += ++length;
    ++n_steps;
  };
  if (case_.device.kind == Device::Kind::cuda) {
    r.samples = measure([&] { decode_on_gpu(length, r.host); }, case_.rules(), begin);
    while (engine_.sampler().in_flight() > 0) (void)engine_.sampler().collect();
  } else {
    Tensor logits;
    r.samples = measure([&] { logits = engine_.extend(step); }, case_.rules(), begin);
    (void)ops::logit_stats(logits);
  }

  const model::ModelConfig& config = engine_.config();
  const int length_mean = static_cast<int>(std::lround(keys_sum / n_steps));
  const kv::KeyUsage& usage = engine_.cache().usage(0);
  double pairs = 0;
  for (int layer = 0; layer < config.n_layers; ++layer)
    pairs += engine_.cache().policy(0).keys_read(layer, length_mean).total;
  if (usage.visible > 0)
    r.keys = KeyShares{usage.selected_share(), usage.fixed_share(),
                       usage.with_error > 0 ? usage.mean_error() : -1};
  r.tokens = case_.batch;
  r.work.bytes =
      static_cast<double>(engine_.weight_bytes()) + (usage.bytes() - kv_before) / n_steps;
  for (int a = 0; a < std::min(case_.batch, case_.bench.adapters.n); ++a)
    r.work.bytes += static_cast<double>(engine_.adapter_bytes(a));
  r.work.host_bytes = static_cast<double>(engine_.streamed_bytes()) +
                      (engine_.cache().residence().streamed_bytes() - streamed_before) / n_steps;
  r.work.flops = case_.batch * (model::layer_flops(config) + model::head_flops(config) +
                                model::attention_flops(config, pairs));
  return r;
}

PhaseResult bench_load(const std::function<decode::ModelFiles()>& open, const ModelCase& c,
                       const Interrupted& interrupted,
                       const std::function<void(double share)>& on_load) {
  PhaseResult r{.phase = ModelPhase::load};
  std::optional<decode::Engine> engine;
  r.samples = measure([&] { engine.emplace(open(), engine_spec(c, interrupted), on_load); },
                      c.rules(), [&] { engine.reset(); });
  r.work.bytes = static_cast<double>(engine->memory_plan().group_bytes("weights"));
  return r;
}

std::unique_ptr<decode::Engine> switching_engine(decode::ModelFiles files, const ModelCase& c,
                                                 const Interrupted& interrupted,
                                                 const std::function<void(double share)>& on_load) {
  return std::make_unique<decode::Engine>(std::move(files), switch_spec(c, interrupted), on_load);
}

PhaseResult bench_switch(decode::Engine& engine, const ModelCase& c) {
  PhaseResult r{.phase = ModelPhase::switching};
  int next = 0;
  engine.switch_adapter(next);
  r.samples = measure(
      [&] {
        next = (next + 1) % c.bench.adapters.n;
        engine.switch_adapter(next);
      },
      c.rules());
  r.work.bytes = static_cast<double>(engine.adapter_bytes(0));
  return r;
}

}  // namespace tandem::bench
