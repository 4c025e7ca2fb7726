// Hash tables of prompts that a GPU makes and copies to host memory, against those that the CPU
// makes of the same keys.
#include "kv/policies/prompt_tables.h"

#include <algorithm>
#include <numeric>

#include "base/cpu_features.h"
#include "gpu/device_buffer.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kLayers = 4, kKvHeads = 2, kSlots = 4, kMaxTokens = 3000, kBlock = 256;
constexpr Device kGpu{Device::Kind::cuda, 0};
const std::vector<int> kSparse = {0, 2, 3};

struct Shape {
  recipe::Lsh lsh;
  int d;
  DType dtype;
};

/// The index of all slots in host memory.
struct Index {
  Index(const Shape& s, const kv::Bounds& bounds)
      : shape(s),
        index({.max_seqs = kSlots,
               .max_tokens = kMaxTokens,
               .total_tokens = int64_t{kSlots} * kMaxTokens,
               .max_block = kBlock}),
        grid{static_cast<int>(kSparse.size()), kKvHeads},
        centers(bounds, grid),
        tables(s.lsh, bounds.geometry, index, grid) {}

  void plan(MemoryPlan& plan, const std::string& prefix) const {
    centers.plan(plan, prefix);
    tables.plan(plan, prefix);
  }
  void allocate(Arena& arena, const std::string& prefix) {
    centers.allocate(arena, prefix);
    tables.allocate(arena, prefix);
  }
  kv::TokenIndex::Work lay_out(int slot, int length, bool prompt) {
    kv::TokenIndex::Work work{.slot = slot, .length = length, .fresh = index.empty(slot)};
    work.pieces = index.extend(slot, index.wanted_end(slot, length, prompt));
    work.ordinals = {0, grid.n_sparse};
    return work;
  }
  /// Made by the CPU, in all layers.
  void make(int slot, int length, bool prompt, const kv::PagedStore& store) {
    const kv::TokenIndex::Work work = lay_out(slot, length, prompt);
    if (work.pieces.empty()) return;
    if (work.fresh)
      centers.set(slot, kSparse, work.ordinals, index.begin(), index.end(slot), store);
    tables.index_tokens(work, kSparse, centers, store);
  }
  void fork(int from, int to) {
    index.fork(from, to);
    centers.copy(from, to);
  }

  /// Codes of a block's tokens, by table, as its buckets have them; -1 of tokens that are in none
  /// or in several.
  std::vector<int> codes_of(int slot, int i, int ordinal, int kv_head) const {
    const auto block = static_cast<size_t>(index.blocks(slot)[static_cast<size_t>(i)]);
    const int buckets = 1 << shape.lsh.bits, n = index.block_tokens(slot, i);
    const auto* offsets = reinterpret_cast<const uint16_t*>(
        tables.memory().data() + grid.cell(static_cast<int>(block), ordinal, kv_head) *
                                     kv::hash_block_bytes(shape.lsh, index.capacity()));
    const uint16_t* ids = offsets + shape.lsh.tables * (buckets + 1);
    std::vector<int> codes(static_cast<size_t>(shape.lsh.tables * n), -1), times(codes.size());
    for (int t = 0; t < shape.lsh.tables; ++t, offsets += buckets + 1, ids += index.capacity()) {
      if (offsets[0] != 0 || offsets[buckets] != n) continue;
      for (int code = 0; code < buckets; ++code)
        for (int at = offsets[code]; at < std::min<int>(offsets[code + 1], n); ++at) {
          if (ids[at] >= n) continue;
          const auto place = static_cast<size_t>(t * n + ids[at]);
          codes[place] = ++times[place] == 1 ? code : -1;
        }
    }
    return codes;
  }
  std::vector<float> norms_of(int slot, int i, int ordinal, int kv_head) const {
    const int block = index.blocks(slot)[static_cast<size_t>(i)];
    const auto* norms = reinterpret_cast<const float*>(tables.norm_memory().data()) +
                        grid.cell(block, ordinal, kv_head) * static_cast<size_t>(index.capacity());
    return {norms, norms + index.block_tokens(slot, i)};
  }
  /// Ids that collide with a query [d].
  std::vector<int32_t> found(int slot, int ordinal, int kv_head,
                             const std::vector<float>& q) const {
    std::vector<uint64_t> bits(tables.query_bits_words());
    std::vector<uint16_t> codes(static_cast<size_t>(shape.lsh.tables));
    tables.hash_queries(q.data(), 1, bits.data(), codes.data());
    std::vector<uint8_t> memory(tables.counter_bytes() + 64);
    uint8_t* counters = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    std::vector<int32_t> ids(kMaxTokens + 16);
    kv::KeyList list;
    tables.add_collisions(
        {.slot = slot, .kv_head = kv_head, .keys = kv::KeyRows(Tensor(), nullptr, kv_head)},
        ordinal, codes.data(), counters, ids.data(), list);
    ids.resize(static_cast<size_t>(list.n_keys()));
    return ids;
  }

  Shape shape;
  kv::TokenIndex index;
  kv::HeadGrid grid;
  kv::KeyCenters centers;
  kv::LshTables tables;
};

/// The same keys on both devices: of all layers in host memory, of one layer on the GPU.
struct Stores {
  explicit Stores(const Shape& s)
      : arena(plan_of(s)), host(spec(s), arena), gpu(gpu_spec(s), arena, {&queue()}, host) {
    PhiloxStream stream(5);
    for (int layer = 0; layer < kLayers; ++layer) {
      const Tensor k = host.k(layer);
      for (int64_t i = 0; i < k.elements(); ++i) {
        // Keys in a cone, as models have them.
        const float x = random_float(stream, 1.0f) + (i % 3 == 0 ? 2.0f : 0.0f);
        if (s.dtype == DType::f32)
          k.as<float>()[i] = x;
        else
          k.as<bf16>()[i] = to_bf16(x);
      }
    }
  }
  static kv::PagedStore::Spec spec(const Shape& s) {
    constexpr int kPages = (kMaxTokens + kPageTokens - 1) / kPageTokens;
    return {.n_layers = kLayers,
            .n_kv_heads = kKvHeads,
            .head_dim = s.d,
            .dtype = s.dtype,
            .n_pages = kSlots * kPages,
            .max_slots = kSlots,
            .max_pages = kPages};
  }
  static kv::PagedStore::Spec gpu_spec(const Shape& s) {
    kv::PagedStore::Spec gpu = spec(s);
    gpu.device = kGpu;
    gpu.prefix = "gpu";
    gpu.one_layer = true;
    return gpu;
  }
  static MemoryPlan plan_of(const Shape& s) {
    MemoryPlan plan;
    kv::PagedStore::plan(spec(s), plan);
    kv::PagedStore::plan(gpu_spec(s), plan);
    return plan;
  }

  Arena arena;
  kv::PagedStore host, gpu;
};

struct Differences {
  size_t keys = 0, codes = 0, norms = 0, centers = 0, lists = 0, found = 0;
};

Differences compare(const Index& a, const Index& b) {
  Differences n;
  PhiloxStream stream(6);
  const int d = a.shape.d;
  for (int slot = 0; slot < kSlots; ++slot) {
    REQUIRE(a.index.blocks(slot) == b.index.blocks(slot));
    REQUIRE(a.index.end(slot) == b.index.end(slot));
    if (a.index.empty(slot)) continue;
    for (int ordinal = 0; ordinal < a.grid.n_sparse; ++ordinal)
      for (int head = 0; head < kKvHeads; ++head) {
        n.centers +=
            std::equal(a.centers.at(slot, ordinal, head), a.centers.at(slot, ordinal, head) + d,
                       b.centers.at(slot, ordinal, head))
                ? 0
                : 1;
        for (int i = 0; i < static_cast<int>(a.index.blocks(slot).size()); ++i) {
          const std::vector<int> codes = a.codes_of(slot, i, ordinal, head),
                                 others = b.codes_of(slot, i, ordinal, head);
          REQUIRE(std::ranges::count(codes, -1) == 0);
          REQUIRE(std::ranges::count(others, -1) == 0);
          n.keys += codes.size();
          for (size_t at = 0; at < codes.size(); ++at) n.codes += codes[at] != others[at] ? 1 : 0;
          n.norms +=
              a.norms_of(slot, i, ordinal, head) == b.norms_of(slot, i, ordinal, head) ? 0 : 1;
        }
        std::vector<float> q(static_cast<size_t>(d));
        for (float& x : q) x = random_float(stream, 1.0f);
        const std::vector<int32_t> ids = a.found(slot, ordinal, head, q);
        n.found += ids.size();
        n.lists += ids == b.found(slot, ordinal, head, q) ? 0 : 1;
      }
  }
  return n;
}

void check_same(const Index& a, const Index& b) {
  const Differences n = compare(a, b);
  CHECK(n.found > 0);
  CHECK(n.centers == 0);
  CHECK(n.norms == 0);
  // The scalar body rounds products, too: signs next to planes may differ.
  if (isa_in_use() == Isa::scalar) {
    CHECK(n.codes <= n.keys / 1000);
    return;
  }
  CHECK(n.codes == 0);
  CHECK(n.lists == 0);
}

void check(const Shape& shape) {
  CAPTURE(shape.d);
  CAPTURE(shape.lsh.tables);
  CAPTURE(shape.lsh.bits);
  Stores stores(shape);
  const kv::Bounds bounds{.geometry = {.n_layers = kLayers,
                                       .n_heads = kKvHeads,
                                       .n_kv_heads = kKvHeads,
                                       .head_dim = shape.d,
                                       .dtype = shape.dtype},
                          .max_seqs = kSlots,
                          .max_tokens = kMaxTokens,
                          .total_tokens = int64_t{kSlots} * kMaxTokens,
                          .hosted = true,
                          .prompts = kGpu};
  Index by_cpu(shape, bounds), by_gpu(shape, bounds);
  kv::PromptTables maker(shape.lsh, bounds, by_gpu.index, by_gpu.grid, kGpu);
  MemoryPlan plan;
  by_cpu.plan(plan, "cpu");
  by_gpu.plan(plan, "gpu");
  maker.plan(plan, "gpu.prompts");
  Arena arena(plan);
  by_cpu.allocate(arena, "cpu");
  by_gpu.allocate(arena, "gpu");
  maker.allocate(arena, "gpu.prompts");
  cuda::Queue copies(0);
  maker.run_on({&queue()}, copies, by_gpu.tables, by_gpu.centers);
  CHECK(maker.why_unpinned().empty());

  // Texts of six blocks, of three, and of two keys, whose pages alternate.
  const std::vector<int> lengths = {1400, 700, 70};
  for (int slot = 0; slot < kSlots - 1; ++slot) CHECK(stores.host.acquire() == slot);
  for (int n = 50; n <= 1400; n += 50)
    for (int slot = 0; slot < kSlots - 1; ++slot)
      stores.host.reserve(slot, std::min(n, lengths[static_cast<size_t>(slot)]));
  const auto make_prompts = [&](const std::vector<int>& slots) {
    std::vector<kv::TokenIndex::Work> works;
    for (const int slot : slots) {
      const int length = lengths[static_cast<size_t>(slot)];
      by_cpu.make(slot, length, true, stores.host);
      works.push_back(by_gpu.lay_out(slot, length, true));
    }
    for (int ordinal = 0; ordinal < by_gpu.grid.n_sparse; ++ordinal) {
      const int layer = kSparse[static_cast<size_t>(ordinal)];
      for (const int slot : slots)  // over the layer before
        stores.gpu.copy_layer_from(stores.host, layer, slot, 0, lengths[static_cast<size_t>(slot)]);
      for (kv::TokenIndex::Work& work : works) {
        work.ordinals = {ordinal, ordinal + 1};
        if (!work.pieces.empty()) maker.index_tokens(work, layer, stores.gpu);
      }
    }
    copies.wait();
  };
  make_prompts({0, 2});
  check_same(by_cpu, by_gpu);
  make_prompts({1});
  check_same(by_cpu, by_gpu);

  // The CPU goes on with either: in a fork, which copies a block, and in its parent.
  for (const int slot : {0, 1, 2}) stores.host.set_length(slot, lengths[static_cast<size_t>(slot)]);
  CHECK(stores.host.fork(0) == kSlots - 1);
  for (Index* of : {&by_cpu, &by_gpu}) of->fork(0, kSlots - 1);
  for (const auto& [slot, length] :
       {std::pair{kSlots - 1, 2700}, std::pair{0, 2500}, std::pair{2, 1300}}) {
    stores.host.reserve(slot, length);
    for (Index* of : {&by_cpu, &by_gpu}) of->make(slot, length, false, stores.host);
    check_same(by_cpu, by_gpu);
  }

  // Blocks that were free again, of a text that is read anew.
  for (Index* of : {&by_cpu, &by_gpu}) of->index.release(1);
  make_prompts({1});
  check_same(by_cpu, by_gpu);
}

}  // namespace

TEST_SUITE("gpu/kv/prompt_tables") {
  TEST_CASE("tables, norms and centers that a GPU makes are the CPU's") {
    check({{.bits = 10, .tables = 180}, 128, DType::bf16});
    check({{.bits = 4, .tables = 24}, 64, DType::f32});
    check({{.bits = 7, .tables = 75}, 40, DType::bf16});
  }
}
