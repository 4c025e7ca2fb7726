#include "decode/fit/sizing.h"

#include "ranks/device_comm.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "model/forward/transformer.h"
#include "model/spec/weight_formats.h"
#include "tensor/driver_memory.h"

namespace tandem::decode {
namespace {

/// Of free memory that auto leaves alone: a plan counts bytes, but a GPU gives whole pages of 2
/// MiB, and code is loaded when it first runs. A limit that the recipe sets means the plan and
/// nothing else.
constexpr size_t kReserve = size_t{512} << 20;

/// In more passes over its layers a prompt of 98,304 tokens takes a tenth longer for the keys that
/// each brings again.
constexpr int kMostPasses = 8;

/// Bytes of a run's requests, which have the tokens of prompts after what all begin with; of the
/// tokens of sequences under way; and of results that wait for those before them.
size_t text_bytes(const PromptSet& prompts, const SequenceRoom& room, int max_tokens) {
  constexpr size_t kEach = 512;   // of a request and its result, without tokens
  constexpr size_t kWaiting = 8;  // bytes of a token's text
  size_t bytes =
      static_cast<size_t>(room.batch) * static_cast<size_t>(room.longest) * sizeof(int32_t);
  for (const auto& ids : prompts.sequences)
    bytes += (ids.size() - prompts.shared) * sizeof(int32_t) + kEach +
             static_cast<size_t>(max_tokens) * kWaiting;
  return bytes;
}

/// Different numbers of rows that forwards have, less those that every run has: prompts that begin
/// when others end have one each, and so has every number of sequences, times those of a round.
int row_counts(const SequenceRoom& room, const RoundNeeds& extra) {
  constexpr int kOfRounds = 6, kOfAny = 8;
  const int each = extra.rows > 0 ? kOfRounds : 1;
  return std::max(0, room.batch * each + std::max(0, room.prompts - room.batch) - kOfAny);
}

}  // namespace

SequenceRoom room_for(const PromptSet& prompts, const SequenceBounds& bounds) {
  const auto common = static_cast<int64_t>(prompts.shared), shared = bounds.saved + common;
  SequenceRoom room{.prefix = shared > 0, .total = shared};
  std::vector<int64_t> lengths, own;  // of each prompt: at its end; after what all begin with
  for (const auto& ids : prompts.sequences) {
    const int64_t n = bounds.saved + static_cast<int64_t>(ids.size());
    if (n + bounds.least_new > bounds.context)
      throw input_error("prompt", "has {} tokens, but the context holds only {}", n, bounds.context)
          .hint(bounds.prompt_room().remedy(n));
    lengths.push_back(std::min(bounds.context, n + bounds.max_tokens));
    own.push_back(std::max<int64_t>(1, n - shared));  // of nothing new, the last token again
  }
  if (lengths.empty()) lengths = own = {bounds.context};
  std::sort(lengths.rbegin(), lengths.rend());
  std::sort(own.rbegin(), own.rend());
  room.prompts = static_cast<int>(lengths.size());
  room.batch = std::min(bounds.batch, room.prompts);
  room.texts = text_bytes(prompts, room, bounds.max_tokens);
  room.to_read =
      std::max(common, std::accumulate(own.begin(), own.begin() + room.batch, int64_t{0}));
  room.longest = lengths.front();
  for (int i = 0; i < room.batch; ++i) room.total += lengths[static_cast<size_t>(i)] - shared;
  return room;
}

SequenceRoom room_under(SequenceRoom room, const recipe::Cache& cache, int64_t prefill) {
  if (!kv::needs_of(cache).reads_prompts) return room;
  // Whole pages, of which the first and the last of the window and the sinks' last are in part.
  const int64_t window = cache.sinks.value + cache.recent.value + int64_t{3} * kPageTokens;
  room.total = std::min(room.total, room.sequences() * std::min(room.longest, window) +
                                        std::min(prefill, room.to_read));
  return room;
}

int batch_size(const recipe::Run& run, size_t n) {
  constexpr int kMaxAutoBatch = 32;
  return std::min(run.batch > 0 ? run.batch : kMaxAutoBatch, static_cast<int>(n));
}

void add_engine(MemoryPlan& all, const MemoryPlan& own, const std::string& prefix) {
  constexpr std::array<std::string_view, 5> kOnce = {Engine::kProgramItem, Engine::kNcclItem,
                                                     kDriverItem, kHostDriverItem, kHostCodeItem};
  for (const PlanItem& item : own.items())
    if (std::ranges::find(kOnce, item.name) == kOnce.end())
      all.add(prefix + ' ' + item.name, item.bytes, item.device, item.lifetime);
}

void check_offload(const recipe::Offload& offload, const model::ModelConfig& config,
                   Device device) {
  if (!offload.any()) return;
  if (device.kind != Device::Kind::cuda)
    throw recipe_error("model.offload", "is {}, which needs a GPU, but this run is on the CPU",
                       recipe::yaml_text(offload))
        .hint("leave it none, or choose a GPU with --device cuda");
  if (offload.layers > config.n_layers)
    throw recipe_error("model.offload", "is {} layers, but the model has only {}", offload.layers,
                       config.n_layers)
        .hint("set auto to keep on the GPU as many layers as fit");
}

Savings savings_of(const recipe::Offload& offload, const model::ModelConfig& config,
                   const MemoryLimits& limits,
                   const std::function<MemoryPlan(const Savings&)>& plan_of, int key_layers,
                   int set_channels) {
  check_offload(offload, config, limits.gpu);
  Savings s;
  const auto stream = [&](int n) {
    s.n_streamed = n;
    s.set_channels = n > 0 ? set_channels : 0;
  };
  stream(offload.automatic() ? 0 : offload.layers);
  const int parts = set_channels > 0 ? static_cast<int>(model::kLayerParts.size()) : 1;
  const int most = parts * config.n_layers;
  if (!limits.on_gpu()) return s;
  size_t peak = plan_of(s).peak(limits.gpu);
  const auto fits = [&] { return peak + (limits.gpu_limited ? 0 : kReserve) <= limits.gpu_bytes; };
  const auto take_if_less = [&](const Savings& with) {
    const size_t less = plan_of(with).peak(limits.gpu);
    if (less >= peak) return;
    s = with;
    peak = less;
  };
  Savings with = s;
  // Copies then run ahead under a round's drafts for 1 1/8 layers, not for two.
  with.ring_eighths = 1;
  if (key_layers > 0 || !fits()) take_if_less(with);
  with = s;
  with.host_embedding = true;
  if (!fits()) take_if_less(with);
  for (int passes = 2; passes <= kMostPasses && !fits(); ++passes) {
    with = s;
    with.prompt_passes = passes;
    take_if_less(with);
  }
  // The first ones cost more than they save: the ring that they pass through.
  while (offload.automatic() && s.n_streamed < most && !fits()) {
    stream(s.n_streamed + 1);
    peak = plan_of(s).peak(limits.gpu);
  }
  // With all of them there is no ring, so that the last ones may fit where fewer do not.
  for (int n = key_layers; n > 0; --n) {
    with = s;
    with.resident_layers = n;
    peak = plan_of(with).peak(limits.gpu);
    if (!fits()) continue;
    s = with;
    break;
  }
  // A layer here saves its copy in every forward, the rest of a ring at most as much in a round.
  for (int n = Savings::kWholeRing; n > s.ring_eighths; --n) {
    with = s;
    with.ring_eighths = n;
    peak = plan_of(with).peak(limits.gpu);
    if (fits()) return with;
  }
  return s;
}

std::shared_ptr<Comm> comm_of(const RunContext& run, Device device) {
  if (!run.group()) return nullptr;
  if (device.kind == Device::Kind::cpu) return std::make_shared<ranks::HostComm>(run.group());
  const auto on_gpus = std::make_shared<ranks::DeviceComm>(run.group(), device.index);
  run.note(fmt::format("ranks    {}, {}", run.group()->size(), on_gpus->ways()));
  return on_gpus;
}

void report_opening(const RunContext& run, const ModelFiles& files) {
  for (const std::string& text : files.warnings) run.warn(text);
  for (const std::string& text : files.notes) run.note_once(text);
}

EngineSizer::EngineSizer(const recipe::Model& model, const recipe::Run& run,
                         std::vector<recipe::Cache> caches, const RunContext& cx)
    : model_(model),
      run_(run),
      cx_(cx),
      caches_(std::move(caches)),
      place_(choose_placement(run, model.offload, cx.dry_run(), caches_, cx.place())),
      comm_(comm_of(cx, place_.device)) {}

DType EngineSizer::compute() const {
  return model_.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
}

void EngineSizer::place_codes(ModelFiles& files, const recipe::Weights& of) const {
  using recipe::WeightType;
  const bool on_gpu = place_.device.kind == Device::Kind::cuda;
  if (of.weights == WeightType::bf16 || of.weights == WeightType::f32)
    note_widened(files, compute(), "as model.weights says");
  else
    keep_codes(files, place_.device, compute(),
               !on_gpu && of.activations != recipe::Activations::compute,
               on_gpu && of.activations == recipe::Activations::fp8);
  using recipe::Activations;
  const bool int8 = of.activations == Activations::int8, fp8 = of.activations == Activations::fp8;
  if (on_gpu ? int8 : fp8)
    throw recipe_error("model.activations", "is {0}, but a {1} does not round activations to {0}",
                       recipe::yaml_text(of.activations), on_gpu ? "GPU" : "CPU")
        .hint("leave model.activations out");
  const auto& formats = files.config.formats;
  if ((int8 && !(formats && formats->int8_inputs)) || (fp8 && !(formats && formats->fp8_inputs)))
    throw recipe_error("model.activations", "is {}, but no matrix of {} is {} in this run's memory",
                       recipe::yaml_text(of.activations), files.name, int8 ? "int8 or int4" : "fp8")
        .hint(int8 ? "set model.weights=int8 or int4, or leave model.activations out"
                   : "set model.weights=fp8, or leave model.activations out");
}

ModelFiles EngineSizer::open(const recipe::Model& model) const {
  ModelFiles files = decode::open_model(model, static_cast<uint64_t>(run_.seed));
  if (recipe::is_quantized(model.weights)) files.name += " " + recipe::yaml_text(model.weights);
  place_codes(files, model);
  report_opening(cx_, files);
  return files;
}

ModelFiles EngineSizer::open_model(const recipe::Weights& weights) const {
  recipe::Model model = model_;
  // A policy that sets only activations means the codes of the model, or of its file.
  if (weights.weights != recipe::WeightType::automatic || !recipe::is_quantized(model_.weights))
    static_cast<recipe::Weights&>(model) = weights;
  else
    model.activations = weights.activations;
  const bool numbers =
      model.weights != recipe::WeightType::automatic && !recipe::is_quantized(model.weights);
  if (numbers && recipe::yaml_text(model.weights) != recipe::yaml_text(model.compute))
    throw recipe_error("eval.policies", "has weights {}, but model.compute is {}",
                       recipe::yaml_text(model.weights), recipe::yaml_text(model.compute));
  ModelFiles files = open(model);
  if (group()) group()->require_equal("model.path", files.fingerprint);
  take_shard(files, cx_.place().rank, cx_.place().size);
  return files;
}

ModelFiles EngineSizer::open_draft(const recipe::Model& draft) const {
  ModelFiles files = open(draft);
  if (group()) group()->require_equal(draft.path.value, files.fingerprint);
  take_draft_shard(files, cx_.place().rank, cx_.place().size);
  return files;
}

MemoryLimits EngineSizer::limits() const {
  MemoryLimits limits = memory_limits(run_, place_);
  if (!group()) return limits;
  const auto least = [&](size_t bytes) {
    return static_cast<size_t>(group()->least_of(static_cast<double>(bytes)));
  };
  limits.host = least(limits.host);
  if (limits.on_gpu()) limits.gpu_bytes = least(limits.gpu_bytes);
  return limits;
}

EngineSpec EngineSizer::spec(const SequenceRoom& all, const RoundNeeds& extra,
                             const recipe::Cache& cache) const {
  const SequenceRoom room = room_under(all, cache, run_.prefill_chunk);
  EngineSpec spec;
  spec.max_seqs = spec.max_prompts = room.sequences();
  spec.max_extend_rows = std::max(extra.rows, spec.max_seqs);  // one token of each, at least
  // On a GPU, rounds are laid out while others are under way.
  const bool on_gpu = device().kind == Device::Kind::cuda;
  const int tokens = extra.tokens + (on_gpu ? extra.ahead : 0);
  spec.max_draft_rows = tokens;
  spec.max_tree_rows = extra.rows;
  spec.max_logit_rows = std::max(extra.logit_rows, 1);
  spec.max_tokens = static_cast<int>(room.longest) + tokens;
  spec.longest = room.longest;
  spec.total_tokens = room.total + int64_t{room.sequences()} * tokens;
  spec.prefill_chunk =
      std::max(static_cast<int>(std::min<int64_t>(run_.prefill_chunk, room.to_read)), extra.rows);
  spec.row_counts = row_counts(room, extra);
  spec.caches = caches_;
  return placed(std::move(spec));
}

EngineSpec EngineSizer::placed(EngineSpec sizes) const {
  sizes.compute = compute();
  sizes.device = place_.device;
  sizes.plan_for = place_.plan_for;
  sizes.prefill_order = run_.prefill_order;
  sizes.n_ranks = n_ranks();
  sizes.comm = comm_;
  return sizes;
}

MemoryPlan EngineSizer::save_memory(const model::ModelConfig& config,
                                    const std::function<MemoryPlan(const Savings&)>& plan_of,
                                    int set_channels) const {
  const bool resides = std::ranges::any_of(caches_, [](const recipe::Cache& c) {
    return c.is_hosted() && c.resident_layers.automatic();
  });
  int key_layers = 0;  // that read whole texts
  const kv::Geometry geometry = model::geometry_of(config, compute());
  for (int layer = 0; resides && layer < config.n_layers; ++layer)
    if (geometry.window(layer) == 0) ++key_layers;
  const Savings own =
      savings_of(model_.offload, config, limits(), plan_of, key_layers, set_channels);
  return plan_of(group() ? group()->agree(own) : own);
}

}  // namespace tandem::decode
