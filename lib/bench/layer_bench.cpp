#include "bench/layer_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "kv/fill_random.h"
#include "machine/onednn_gemm.h"
#include "model/forward/transformer.h"
#include "model/spec/work.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

using model::Role;

ops::PackedWeights::Spec spec_of(Role role, DType dtype, const model::ModelConfig& config) {
  const io::Shape shape = model::shape_of(role, config);
  return {.name = std::string("weights/") + model::info(role).planned,
          .out = shape[0],
          .in = shape[1],
          .stored = dtype};
}

DType output_of(Role role, const ModelCase& c) {
  return model::ends_in_stream(role) ? DType::f32 : c.dtype;
}

/// Buffers of each product: x, y and what it stages.
std::string buffer_name(const char* of, Role role) {
  return of + std::string(model::info(role).planned);
}
constexpr const char *kX = "activations/x ", *kY = "activations/y ", *kStaging = "staging/";

Tensor taken(Arena& arena, const std::string& name, DType dtype, int64_t rows, int64_t cols) {
  return {arena.take(name), dtype, {rows, cols}};
}

constexpr float kWeightDeviation = 0.02f;  // as in synthetic models

/// One product on separate memory, as the forward runs it.
struct Product {
  ops::PackedWeights weights;
  Tensor x, y;
  ops::Accumulate accumulate;

  Product(Role role, const ops::PackedWeights::Spec& spec, uint32_t id, const ModelCase& c,
          Arena& arena)
      : x(taken(arena, buffer_name(kX, role), c.dtype, c.chunk, spec.in)),
        y(taken(arena, buffer_name(kY, role), output_of(role, c), c.chunk, spec.out)),
        accumulate(model::ends_in_stream(role) ? ops::Accumulate::yes : ops::Accumulate::no) {
    const std::string name = buffer_name(kStaging, role);
    ops::Staging staging({}, arena.take(name), arena.plan().find(name)->bytes);
    weights.load(
        spec, arena,
        [&](int64_t begin, int64_t end, void* to) {
          ops::fill_random(to, c.dtype,
                           {.seed = c.seed,
                            .tensor = id,
                            .first = begin * spec.in,
                            .n = (end - begin) * spec.in,
                            .stddev = kWeightDeviation});
        },
        {}, staging);
    arena.give_back(name);
    ops::fill_random(x.raw(), c.dtype, {.seed = c.seed, .tensor = id + 100, .n = x.elements()});
  }
};

/// One layer and one position: what attention alone needs of a cache.
kv::Cache::Spec cache_spec(const ModelCase& c, const model::ModelConfig& config) {
  kv::Geometry g = model::geometry_of(config, c.dtype);
  g.n_layers = 1;
  return {.geometry = g,
          .max_seqs = 1,
          .max_tokens = c.context,
          .total_tokens = c.context,
          .max_rows = std::min(c.chunk, c.context),
          .policies = {{}}};
}

}  // namespace

MemoryPlan linear_plan(const ModelCase& c, const model::ModelConfig& config) {
  MemoryPlan plan;
  plan.add("process/program and tokenizer", resident_bytes());
  size_t workspace = 0, alone = 0;
  const auto rows = static_cast<size_t>(c.chunk);
  for (const Role role : model::kLayerStacks) {
    const auto spec = spec_of(role, c.dtype, config);
    const auto in = static_cast<size_t>(spec.in), out = static_cast<size_t>(spec.out);
    ops::PackedWeights::plan(spec, plan);
    plan.add(buffer_name(kStaging, role), ops::PackedWeights::staging_bytes(spec), {},
             Lifetime::load);
    plan.add(buffer_name(kX, role), rows * in * dtype_bytes(c.dtype));
    plan.add(buffer_name(kY, role), rows * out * dtype_bytes(output_of(role, c)));
    workspace = std::max(workspace, ops::PackedWeights::workspace_bytes(spec, c.chunk));
    // oneDNN's own weights, twice while they are packed, and its input and output.
    alone +=
        (rows * (in + out) + 2 * in * out) * dtype_bytes(machine::OneDnnGemm::arithmetic(c.dtype));
  }
  plan.add("workspace/linear", workspace);
  plan.add("baseline/oneDNN alone", alone);
  return plan;
}

PhaseResult bench_linear(const ModelCase& c, const model::ModelConfig& config,
                         const Interrupted& interrupted) {
  Arena arena(linear_plan(c, config));
  const size_t workspace_bytes = arena.plan().find("workspace/linear")->bytes;
  const std::span workspace(static_cast<std::byte*>(arena.take("workspace/linear")),
                            workspace_bytes);
  std::vector<Product> products;
  std::vector<machine::OneDnnGemm> alone;
  PhaseResult r{.phase = ModelPhase::linear};
  for (const Role role : model::kLayerStacks) {
    const auto spec = spec_of(role, c.dtype, config);
    products.emplace_back(role, spec, static_cast<uint32_t>(products.size()), c, arena);
    alone.emplace_back(c.chunk, spec.out, spec.in, machine::OneDnnGemm::arithmetic(c.dtype));
    r.work.flops += alone.back().flops();
  }
  const auto ours = [&] {
    poll(interrupted);
    for (const Product& p : products) ops::linear(p.y, p.x, p.weights, p.accumulate, workspace, {});
  };
  const auto theirs = [&] {
    for (const machine::OneDnnGemm& gemm : alone) gemm.run();
  };
  // Each side finds in the caches what four products of the other left: no flush between them.
  r.baseline = compare(ours, theirs, c.rules());
  r.samples = r.baseline->a;
  return r;
}

MemoryPlan attention_plan(const ModelCase& c, const model::ModelConfig& config) {
  MemoryPlan plan;
  plan.add("process/program and tokenizer", resident_bytes());
  const kv::Cache::Spec spec = cache_spec(c, config);
  kv::Cache::plan(spec, plan);
  ops::RopeTable::plan(1, config.head_dim, plan);
  const auto elements = static_cast<size_t>(spec.max_rows) * static_cast<size_t>(config.q_dim());
  plan.add("activations/q", elements * dtype_bytes(c.dtype));
  plan.add("activations/out", elements * dtype_bytes(c.dtype));
  return plan;
}

PhaseResult bench_attention(const ModelCase& c, const model::ModelConfig& config,
                            const Interrupted& interrupted) {
  Arena arena(attention_plan(c, config));
  const kv::Cache::Spec spec = cache_spec(c, config);
  const ops::RopeTable rope({}, 1, config.head_dim, arena);
  kv::Cache cache(spec, arena, {&rope, 1});
  const auto buffer = [&](const char* name) {
    return Tensor(arena.take(name), c.dtype, {spec.max_rows, config.n_heads, config.head_dim});
  };
  const Tensor q = buffer("activations/q"), out = buffer("activations/out");
  ops::fill_random(q.raw(), c.dtype, {.seed = c.seed, .tensor = 100, .n = q.elements()});
  // Pages keep their values when the sequence is released, and every run gets all of them again.
  const int first = cache.create();
  kv::fill_random(cache, first, c.context, c.seed);
  cache.release(first);

  PhaseResult r{.phase = ModelPhase::attention};
  r.samples = measure(
      [&] {
        poll(interrupted);
        const int slot = cache.create();
        for (int begin = 0; begin < c.context; begin += spec.max_rows) {
          const int n = std::min(spec.max_rows, c.context - begin);
          const kv::SeqRows rows[] = {{slot, n, begin + n == c.context}};
          const kv::Step step = cache.begin({.phase = kv::Phase::prefill, .rows = rows});
          cache.attend(0, step, out.slice(0, n), q.slice(0, n));
          cache.commit(step);
        }
        cache.release(slot);
      },
      c.rules());
  r.work.flops = model::attention_flops(
      config, model::prefill_pairs(c.context, config.layer(0).attention.window));
  return r;
}

}  // namespace tandem::bench
