#include "kv/cache_parts.h"

#include <algorithm>

#include "kv/policies/code_frames.h"
#include "ops/attention.h"

namespace tandem::kv {
namespace parts {

int page_count(int64_t tokens) {
  return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
}

PagedStore::Spec store_spec(const Cache::Spec& s) {
  const Geometry& g = s.geometry;
  // Every sequence may end in a page of its own and may own a copy of the page where it forked.
  return {.n_layers = g.n_layers,
          .n_kv_heads = g.n_kv_heads,
          .head_dim = g.head_dim,
          .dtype = g.dtype,
          .n_pages = page_count(s.total_tokens) + (s.max_seqs > 1 ? 2 * s.max_seqs : 0),
          .max_slots = s.max_seqs,
          .max_pages = page_count(s.max_tokens),
          .max_moves = s.max_rows,
          .device = s.device};
}

bool on_host(const recipe::Cache& c) { return c.is_hosted(); }
Device list_device(const Cache::Spec& s) {
  return std::ranges::any_of(s.policies, &recipe::Cache::chooses_on_cpu) ? Device{} : s.device;
}

QueryRing::Spec ring_spec(const Cache::Spec& s) {
  int window = 0, required = 0;
  for (const recipe::Cache& c : s.policies) {
    const Needs needs = needs_of(c);
    window = std::max(window, needs.queries);
    if (c.is_quantized()) window = std::max(window, CodeFrames::kAxisQueries);
    if (needs.needs_queries) required = std::max(required, needs.queries);
  }
  return {.n_layers = s.geometry.n_layers,
          .n_heads = s.geometry.n_heads,
          .head_dim = s.geometry.head_dim,
          .dtype = s.geometry.dtype,
          .max_slots = s.max_seqs,
          .window = std::min(window, s.max_tokens),
          .required = std::min(required, s.max_tokens),
          .max_draft_rows = std::max(1, s.max_draft_rows),
          .device = s.device,
          .read_on_host = list_device(s) != s.device};
}

bool wants_scores(const Cache::Spec& s) {
  return std::ranges::any_of(s.policies, [](const auto& c) { return needs_of(c).scores; });
}

/// Rows of a step that policies serve.
size_t extend_rows(const Cache::Spec& s) {
  return static_cast<size_t>(s.max_extend_rows > 0 ? std::min(s.max_extend_rows, s.max_rows)
                                                   : s.max_rows);
}

ScoreStore::Spec score_spec(const Cache::Spec& s) {
  return {.n_layers = s.geometry.n_layers,
          .n_heads = s.geometry.n_heads,
          .n_kv_heads = s.geometry.n_kv_heads,
          .max_slots = s.max_seqs,
          .max_tokens = s.max_tokens,
          .max_rows = static_cast<int>(extend_rows(s)),
          .device = s.device};
}

bool turns_q(const Cache::Spec& s) {
  return std::ranges::any_of(s.policies, [](const auto& c) { return needs_of(c).turns_q; });
}

size_t partial_rows(const Cache::Spec& s) {
  return turns_q(s) ? static_cast<size_t>(s.max_rows) : extend_rows(s);
}

size_t q_elements(const Cache::Spec& s) {
  return partial_rows(s) * static_cast<size_t>(s.geometry.n_heads) *
         static_cast<size_t>(s.geometry.head_dim);
}

/// Layers whose keys the first policy of a run has in host memory.
std::vector<int> far_layers(const Cache::Spec& s) {
  return on_host(s.policies[0])
             ? make_policy(s.policies[0], bounds_of(s, 0))->hosted()->hosted_layers()
             : std::vector<int>{};
}

int max_read(const Cache::Spec& s, size_t i) {
  return i > 0 && s.max_drafted > 0 ? std::min(s.max_drafted, s.max_seqs) : s.max_seqs;
}

Bounds bounds_of(const Cache::Spec& s, size_t i) {
  return {.geometry = s.geometry,
          .max_seqs = s.max_seqs,
          .max_prompts = s.max_prompts,
          .max_read = max_read(s, i),
          .max_rows = static_cast<int>(extend_rows(s)),
          .max_tokens = s.max_tokens,
          .total_tokens = s.total_tokens,
          .max_appended = s.max_appended,
          .device = list_device(s),
          .hosted = on_host(s.policies[i]),
          .far_layers = i > 0 ? far_layers(s) : std::vector<int>{},
          .quantized = s.policies[i].is_quantized(),
          .follows = i > 0,
          .prompts = s.device,
          .block_shared_bytes = s.block_shared_bytes};
}

void check_dtype(const recipe::Cache& c, DType compute) {
  using recipe::NumberType;
  if (c.is_quantized()) return;
  const DType asked = c.dtype == NumberType::automatic ? compute
                      : c.dtype == NumberType::f32     ? DType::f32
                                                       : DType::bf16;
  if (asked != compute)
    throw recipe_error("cache.dtype",
                       "is {}, but attention reads only keys of the queries' type, {}",
                       dtype_name(asked), dtype_name(compute))
        .hint(fmt::format("leave it auto, or set model.compute to {}", dtype_name(asked)));
}

void check_host_dtype(const recipe::Cache& c, DType compute) {
  if (c.host_dtype == recipe::HostDtype::bf16 && compute != DType::bf16)
    throw recipe_error("cache.host_dtype", "is bf16, but this model computes in {}",
                       dtype_name(compute))
        .hint("set it to auto (the type of the model) or int8, or set model.compute to bf16");
}

/// Bounds of the CPU's attention over all keys in host memory, if it does that.
std::optional<AttentionBounds> far_bounds(const Cache::Spec& s) {
  const recipe::Cache& c = s.policies[0];
  if (!needs_of(c).reads_all || !c.cpu_attends()) return {};
  const Geometry& g = s.geometry;
  return AttentionBounds{.max_seqs = s.max_seqs,
                         .max_rows = static_cast<int>(extend_rows(s)),
                         .max_tokens = s.max_tokens,
                         .n_heads = g.n_heads,
                         .n_kv_heads = g.n_kv_heads,
                         .head_dim = g.head_dim};
}

std::optional<HostedSpec> hosted_spec(const Cache::Spec& s) {
  if (!std::ranges::any_of(s.policies, on_host)) return {};
  if (!on_host(s.policies[0]) || (s.policies.size() > 1 && !needs_of(s.policies[0]).reads_all))
    throw recipe_error("cache.place",
                       "is host, which is not supported with {} policies over one KV cache",
                       s.policies.size())
        .hint(
            "set it to device, set spec.draft.path to a separate model, or use cache.kind full "
            "with "
            "spec.draft.cache.kind retrieval");
  if (const Needs needs = needs_of(s.policies[0]); !needs.can_be_hosted)
    throw recipe_error("cache.place", "is host, which is not supported by kind {}", needs.kind)
        .hint("choose kind lsh, hybrid or full, or set it to device");
  const auto policy = make_policy(s.policies[0], bounds_of(s, 0));
  const HostedIndex& index = *policy->hosted();
  // All layers may be dense ones.
  if (index.hosted_layers().empty()) return {};
  check_host_dtype(s.policies[0], s.geometry.dtype);
  const int rows = static_cast<int>(extend_rows(s)) + s.max_draft_rows;
  std::vector<int> reader_tokens;
  for (size_t i = 1; i < s.policies.size(); ++i) {
    const auto reader =
        on_host(s.policies[i]) ? nullptr : make_policy(s.policies[i], bounds_of(s, i));
    if (!reader || !reader->hosted())
      throw recipe_error(
          "spec.draft.cache.kind",
          "is {}, which does not support a KV cache that the target keeps in host memory",
          recipe::yaml_text(s.policies[i].kind))
          .hint(
              "choose retrieval, set cache.place to device, or set spec.draft.path to a separate "
              "model");
    reader_tokens.push_back(reader->hosted()->most_ranged());
  }
  const recipe::Cache& first = s.policies[0];
  const HostedKeys::Spec keys{
      .layers = index.hosted_layers(),
      .whole = store_spec(s),
      .near_tokens = std::min(s.max_tokens, index.most_ranged() + rows),
      .near_slots = s.max_extended,
      .reader_tokens = reader_tokens,
      .reader_slots = max_read(s, 1),
      // The longest, or several of a forward's rows.
      .prompt_tokens = std::max(s.max_tokens, s.max_rows),
      .streamed = first.streams_keys(),
      .ring_eighths = s.ring_eighths,
      .eight_bit = first.is_eight_bit(),
      .index_reads_prompt = index.takes_read_prompts(),
      .gpu_reads = !first.chooses_on_cpu() || first.attends() != recipe::Attend::cpu,
      .cpu_reads = first.cpu_attends()};
  return HostedSpec{.keys = keys,
                    .geometry = s.geometry,
                    .recent = static_cast<int>(first.recent),
                    .far = far_bounds(s)};
}

/// errors   kind recipe: quantized keys are not supported there
void check_quantized(const Cache::Spec& s) {
  const recipe::Cache& c = s.policies[0];
  const auto refuse = [&](const std::string& why, std::string hint) {
    throw recipe_error("cache.dtype", "{} {}", recipe::yaml_text(c.dtype), why)
        .hint(std::move(hint));
  };
  const int d = s.geometry.head_dim;
  if (s.geometry.dtype != DType::bf16)
    refuse("needs a bf16 model", "set model.compute to bf16, or cache.dtype to auto");
  if (d % 32 != 0 || d > kMostCodedDims)
    refuse(fmt::format("needs heads of a multiple of 32 dimensions, at most {}, found {}",
                       kMostCodedDims, d),
           "set cache.dtype to auto");
  if (s.policies.size() > 1)
    refuse(fmt::format("does not support {} policies over one KV cache", s.policies.size()),
           "set it to auto, or set spec.draft.path to a separate model");
  if (s.device.kind == Device::Kind::cuda)
    refuse("is supported only on the CPU", "set run.device to cpu, or cache.dtype to auto");
  if (c.place == recipe::CachePlace::host)
    refuse("needs cache.place device, found host", "set it to device, or cache.dtype to auto");
  if (!needs_of(c).reads_all)
    refuse(fmt::format("does not support kind {}", needs_of(c).kind),
           "set cache.kind to full, or cache.dtype to auto");
  for (const int layer : c.wide_layers)
    if (layer >= s.geometry.n_layers)
      throw recipe_error("cache.wide_layers", "names layer {}, but the model has layers 0 to {}",
                         layer, s.geometry.n_layers - 1);
}

std::optional<QuantizedSpec> quantized_spec(const Cache::Spec& s) {
  if (!std::ranges::any_of(s.policies, &recipe::Cache::is_quantized)) return {};
  check_quantized(s);
  const Geometry& g = s.geometry;
  std::vector<int> layers;  // that keep whole texts
  for (int layer = 0; layer < g.n_layers; ++layer)
    if (g.window(layer) == 0) layers.push_back(layer);
  const recipe::Cache& c = s.policies[0];
  if (layers.empty())
    throw recipe_error("cache.dtype", "{} does not support a model with windows in all layers",
                       recipe::yaml_text(c.dtype))
        .hint("set it to auto: the keys of a window need little memory");
  QuantizedKeys::Spec keys{.layers = layers,
                           .whole = store_spec(s),
                           .n_heads = g.n_heads,
                           .rows = static_cast<int>(extend_rows(s)) + s.max_draft_rows,
                           .prompt_tokens = std::max(s.max_tokens, s.max_rows)};
  for (const int layer : layers) keys.bits.push_back(*coded_bits(c, g, layer));
  AttentionBounds bounds = attention_bounds(s);
  bounds.max_rows = static_cast<int>(extend_rows(s));
  return QuantizedSpec{.keys = std::move(keys), .geometry = g, .bounds = bounds};
}

/// Pages for the window of every sequence, tokens that are drafted or taken back, and new rows.
int window_pages(const Cache::Spec& s, int window) {
  int sinks = 0;
  for (size_t i = 0; i < s.policies.size(); ++i)
    sinks = std::max(sinks, make_policy(s.policies[i], bounds_of(s, i))->needs().retention.sinks);
  // A window begins within a page, and rows end within one.
  const int64_t each = page_count(sinks) + page_count(window + int64_t{2} * s.max_draft_rows) + 2;
  const PagedStore::Spec whole = store_spec(s);
  const int64_t all = s.max_seqs * std::min<int64_t>(each, whole.max_pages) +
                      page_count(std::max(s.max_rows, s.max_prompt_rows));
  return static_cast<int>(std::min<int64_t>(all, whole.n_pages));
}

std::vector<PageGroups::Spec> group_specs(const Cache::Spec& s) {
  std::vector<PageGroups::Spec> specs;
  for (PageGroup& group : page_groups(s.geometry, s.max_tokens)) {
    PageGroups::Spec spec{.group = group, .store = store_spec(s), .tables = kTables};
    spec.store.layers = std::move(group.layers);
    if (!specs.empty()) {
      spec.store.n_pages = window_pages(s, group.window);
      spec.store.prefix += fmt::format("/window {}", group.window);
      spec.tables += fmt::format(" of window {}", group.window);
    } else {
      const auto hosted = hosted_spec(s);
      const auto quantized = quantized_spec(s);
      const std::vector<int> elsewhere = hosted      ? hosted->keys.layers
                                         : quantized ? quantized->keys.layers
                                                     : std::vector<int>{};
      std::erase_if(*spec.store.layers, [&](int layer) {
        return std::ranges::find(elsewhere, layer) != elsewhere.end();
      });
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

bool has_lists(const Cache::Spec& s) {
  return list_device(s).kind == Device::Kind::cuda &&
         std::ranges::any_of(s.policies, [](const auto& c) { return needs_of(c).lists; });
}

ListAttention::Spec list_spec(const Cache::Spec& s, size_t scratch_bytes) {
  return {.geometry = s.geometry,
          .scratch_bytes = scratch_bytes,
          .drafted = {.max_seqs = s.max_draft_rows > 0 ? s.max_seqs : 0,
                      .n_kv_heads = s.geometry.n_kv_heads,
                      .max_tokens = s.max_tokens}};
}

std::string prefix_of(const Cache::Spec& s, size_t i) {
  const std::string kind = recipe::yaml_text(s.policies[i].kind);
  return s.policies.size() == 1 ? "index/" + kind : fmt::format("index/{} {}", i, kind);
}

AttentionBounds attention_bounds(const Cache::Spec& s) {
  const Geometry& g = s.geometry;
  return {.max_seqs = s.max_seqs,
          .max_rows = s.max_rows,
          .max_tokens = s.max_tokens,
          .n_heads = g.n_heads,
          .n_kv_heads = g.n_kv_heads,
          .head_dim = g.head_dim,
          .multiprocessors = s.multiprocessors,
          .max_tree_rows = s.max_tree_rows,
          .lists = has_lists(s),
          .scores = wants_scores(s)};
}

DeviceStep::Bounds step_bounds(const Cache::Spec& s) {
  return {.max_seqs = s.max_seqs,
          .max_rows = s.max_rows,
          .max_pages = store_spec(s).max_pages,
          .n_tables = static_cast<int>(page_groups(s.geometry, s.max_tokens).size()) +
                      (std::ranges::any_of(s.policies, on_host) ? 1 : 0)};
}

bool serves_gpu(const Cache::Spec& s) {
  return s.device.kind == Device::Kind::cuda &&
         std::ranges::any_of(s.policies, &recipe::Cache::cpu_attends);
}

bool chooses_for_gpu(const Cache::Spec& s) { return list_device(s) != s.device; }

HostAttention::Spec served_spec(const Cache::Spec& s, int i) {
  const RunNeeds needs = needs_of_run(s);
  return {.name = i == 0 ? "workspace/host attention" : "workspace/host attention 2",
          .max_rows = static_cast<int>(extend_rows(s)),
          .geometry = s.geometry,
          .device = s.device,
          .list_keys = needs.list_keys,
          .list_heads = needs.list_heads};
}

RunNeeds needs_of_run(const Cache::Spec& s) {
  RunNeeds all;
  for (size_t i = 0; i < s.policies.size(); ++i)
    all.add(make_policy(s.policies[i], bounds_of(s, i))->needs());
  if (serves_gpu(s) && !chooses_for_gpu(s) && all.list_keys > 0) {
    ++all.parts;  // of the lists that the GPU chose, what the CPU attends
    all.scratch_bytes = std::max(all.scratch_bytes, size_t{64});
  }
  return all;
}

}  // namespace parts

using namespace parts;

void Cache::plan(const Spec& spec, MemoryPlan& plan) {
  const Geometry& g = spec.geometry;
  const Device device = spec.device;
  for (const recipe::Cache& policy : spec.policies) check_dtype(policy, g.dtype);
  PageGroups::plan(group_specs(spec), plan);
  if (const auto hosted = hosted_spec(spec)) plan_hosted(*hosted, plan);
  if (const auto quantized = quantized_spec(spec)) plan_quantized(*quantized, plan);
  plan.add("workspace/attention", ops::attention_workspace_bytes(device, attention_bounds(spec)),
           device);
  if (device.kind == Device::Kind::cuda) DeviceStep::plan(step_bounds(spec), device, plan);
  if (spec.policies.size() > size_t{Readers::kMaxPolicies})
    throw recipe_error("cache", "found {} policies over one prompt, expected at most {}",
                       spec.policies.size(), Readers::kMaxPolicies)
        .hint("split them over several runs");
  const bool any_full =
      std::ranges::any_of(spec.policies, [](const auto& c) { return needs_of(c).reads_all; });
  for (const recipe::Cache& c : spec.policies)
    if (const Needs needs = needs_of(c); needs.scores && !any_full)
      throw recipe_error("cache.kind",
                         "is {}, which is only supported for drafts: its keys are chosen while the "
                         "target reads the full KV cache",
                         needs.kind)
          .hint(fmt::format(
              "choose {}, or use self-speculation: spec.draft self with draft.cache.kind {}",
              kinds_where([](const Needs& n) { return !n.scores; }), needs.kind));
  if (!any_full)
    for (const recipe::Cache& c : spec.policies)
      if (needs_of(c).rounds)
        throw recipe_error(
            "cache.retrieval.rebuild",
            "is {}, which needs the acceptance rate of a target that reads the full KV cache",
            recipe::yaml_text(c.retrieval.rebuild))
            .hint(
                "set never or a number of tokens, or use self-speculation: spec.draft self with "
                "spec.draft.cache.kind retrieval");
  const auto reads_prompts = [](const auto& c) { return needs_of(c).reads_prompts; };
  if (spec.policies.size() > 1 && std::ranges::any_of(spec.policies, reads_prompts))
    throw recipe_error(
        "cache.prefill",
        "is windowed, but {} policies share the KV cache of the prompt, which must be dense",
        spec.policies.size())
        .hint("set it to dense, or set spec.draft.path to a separate model");
  if (!ring_spec(spec).empty()) QueryRing::plan(ring_spec(spec), plan);
  if (wants_scores(spec)) ScoreStore::plan(score_spec(spec), plan);
  for (size_t i = 0; i < spec.policies.size(); ++i)
    make_policy(spec.policies[i], bounds_of(spec, i))->plan(plan, prefix_of(spec, i));
  const RunNeeds needs = needs_of_run(spec);
  if (needs.scratch_bytes > 0) ListAttention::plan(list_spec(spec, needs.scratch_bytes), plan);
  for (int i = 0; serves_gpu(spec) && i < Cache::kMicroBatches; ++i)
    HostAttention::plan(served_spec(spec, i), plan);
  if (!needs.partials()) return;
  plan.add("workspace/partial_o", needs.parts * q_elements(spec) * sizeof(float), device);
  plan.add("workspace/partial_lse",
           needs.parts * q_elements(spec) / static_cast<size_t>(g.head_dim) * sizeof(float),
           device);
  if (turns_q(spec))
    plan.add("workspace/q_shifted", q_elements(spec) * dtype_bytes(g.dtype), device);
}

size_t Cache::pinned_bytes(const Spec& spec, const MemoryPlan& plan) {
  size_t bytes = plan.group_bytes("kv", {});
  for (size_t i = 0; i < spec.policies.size(); ++i)
    if (const auto policy = make_policy(spec.policies[i], bounds_of(spec, i)); policy->hosted())
      for (const std::string& name : policy->hosted()->pinned(prefix_of(spec, i)))
        if (const PlanItem* item = plan.find(name)) bytes += item->bytes;
  return bytes;
}

}  // namespace tandem::kv
