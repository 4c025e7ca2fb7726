// Chunks of keys: their means, what queries say of them, and the choice of the best.
#include <algorithm>
#include <numeric>

#include "gpu/device_buffer.h"
#include "kernels/chunk_case.h"
#include "kernels/selection/chunks_cuda.h"
#include "ops/selection.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kBlockChunks = 5, kLayers = 2;

/// Blocks of n chunks, in another order than these, of three times as many.
std::vector<int32_t> blocks_for(int n) {
  std::vector<int32_t> blocks(static_cast<size_t>((n + kBlockChunks - 1) / kBlockChunks));
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = static_cast<int32_t>(3 * (blocks.size() - i) - 2);
  return blocks;
}

/// Where chunk i of a layer and KV head lies, in elements.
size_t place_of(const std::vector<int32_t>& blocks, int i, int layer, int head, int d) {
  const int block = blocks[static_cast<size_t>(i / kBlockChunks)];
  const int cell = (block * kLayers + layer) * VoteCase::kHeads + head;
  return (static_cast<size_t>(cell) * kBlockChunks + static_cast<size_t>(i % kBlockChunks)) *
         static_cast<size_t>(d);
}

ChunkBlocks chunk_blocks(const DeviceBuffer& means, const DeviceBuffer& blocks, int d) {
  const int64_t head = int64_t{kBlockChunks} * d, of_layer = VoteCase::kHeads * head;
  return {.means = means.raw(),
          .blocks = blocks.as<int32_t>(),
          .block_stride = kLayers * of_layer,
          .layer_stride = of_layer,
          .head_stride = head,
          .block_chunks = kBlockChunks};
}

/// The CPU's choice from the same scores.
std::vector<int32_t> choice_of(const std::vector<float>& scores, int m) {
  const int n = static_cast<int>(scores.size());
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin() + 1, ids.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  ids.resize(static_cast<size_t>(std::min(n, m)));
  return ids;
}

}  // namespace

TEST_SUITE("gpu/kernels/chunks") {
  TEST_CASE("means have the CPU's bits, in scattered pages and blocks") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {20, 64, 128})
        for (const int chunk : {1, 2, 8, 64})
          for (const auto& [first, n] : {std::pair{0, 1}, {0, 30}, {7, 23}}) {
            CAPTURE(dtype_name(type));
            CAPTURE(d);
            CAPTURE(chunk);
            CAPTURE(first);
            ChunkCase c(type, d, chunk, first, n);
            const std::vector<int32_t> blocks = blocks_for(first + n);
            const size_t n_blocks = blocks.size() * 3;
            const DeviceBuffer keys = on_device(c.text.keys), pages(c.text.pages),
                               device_blocks(blocks),
                               means(n_blocks * kLayers * VoteCase::kHeads * kBlockChunks *
                                     static_cast<size_t>(d) * dtype_bytes(type));
            const ChunkMeansCudaParams p{.to = chunk_blocks(means, device_blocks, d),
                                         .k_pool = keys.raw(),
                                         .pages = pages.as<int32_t>(),
                                         .first = first,
                                         .n = n,
                                         .chunk = chunk,
                                         .n_kv_heads = VoteCase::kHeads,
                                         .d = d,
                                         .dtype = type};
            require_same_in_graph(means, [&] { cuda_table().chunk_means(p, queue().stream()); });
            ActBuffer got(type, means.bytes() / dtype_bytes(type));
            read_back(means, got);
            ActBuffer want = c.means(chunk_means_ref);
            for (int i = 0; i < n; ++i)
              for (int k = 0; k < d; ++k)
                REQUIRE(got.get(place_of(blocks, first + i, 0, VoteCase::kHead, d) +
                                static_cast<size_t>(k)) ==
                        want.get(static_cast<size_t>(i * d + k)));
          }
  }

  TEST_CASE("scores are the CPU's up to rounding, for sums and maxima, windows and rings") {
    PhiloxStream stream(8);
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {20, 64, 128})
        for (const int n : {1, 6, 300, 700})
          for (const int n_queries : {1, 9})
            for (const int group : {1, 3})
              for (const ChunkGroup by : {ChunkGroup::sum, ChunkGroup::max}) {
                CAPTURE(dtype_name(type));
                CAPTURE(d);
                CAPTURE(n);
                CAPTURE(n_queries);
                CAPTURE(group);
                constexpr int kCapacity = 13, kModelLayers = 4, kFirst = 41;
                const int heads = VoteCase::kHeads * group, stride = n + 3;
                const std::vector<int32_t> blocks = blocks_for(n), layers = {3, 1};
                const auto width = static_cast<size_t>(d);
                ActBuffer means(
                    type, blocks.size() * 3 * kLayers * VoteCase::kHeads * kBlockChunks * width),
                    ring(type,
                         size_t{kModelLayers} * kCapacity * static_cast<size_t>(heads) * width);
                fill(means, stream, 1.0f);
                fill(ring, stream, 1.0f);
                const DeviceBuffer device_means = on_device(means), device_ring = on_device(ring),
                                   device_blocks(blocks), device_layers(layers),
                                   scores(sizeof(float) * kLayers * VoteCase::kHeads *
                                          static_cast<size_t>(stride));
                const ChunkScoresCudaParams p{.scores = scores.as<float>(),
                                              .score_stride = stride,
                                              .q = device_ring.raw(),
                                              .q_layer_stride = int64_t{kCapacity} * heads * d,
                                              .capacity = kCapacity,
                                              .first_query = kFirst,
                                              .n_queries = n_queries,
                                              .layers = device_layers.as<int32_t>(),
                                              .from = chunk_blocks(device_means, device_blocks, d),
                                              .n = n,
                                              .n_layers = kLayers,
                                              .n_heads = heads,
                                              .n_kv_heads = VoteCase::kHeads,
                                              .d = d,
                                              .dtype = type,
                                              .group = by};
                require_same_in_graph(scores,
                                      [&] { cuda_table().chunk_scores(p, queue().stream()); });
                const std::vector<float> got = scores.vector<float>();
                double worst = 0;
                for (int layer = 0; layer < kLayers; ++layer)
                  for (int head = 0; head < VoteCase::kHeads; ++head) {
                    const int n_q = by == ChunkGroup::sum ? 1 : group;
                    Buffer<float> q(static_cast<size_t>(n_q) * width);
                    for (int t = kFirst; t < kFirst + n_queries; ++t)
                      for (int h = 0; h < group; ++h)
                        for (size_t k = 0; k < width; ++k)
                          q[static_cast<size_t>(n_q == 1 ? 0 : h) * width + k] += ring.get(
                              (static_cast<size_t>(
                                  (layers[static_cast<size_t>(layer)] * kCapacity + t % kCapacity) *
                                      heads +
                                  head * group + h)) *
                                  width +
                              k);
                    ActBuffer own(type, static_cast<size_t>(n) * width);
                    for (int i = 0; i < n; ++i)
                      for (size_t k = 0; k < width; ++k)
                        own.set(static_cast<size_t>(i) * width + k,
                                means.get(place_of(blocks, i, layer, head, d) + k));
                    const std::vector<float> want = chunk_scores_of(chunk_scores_ref, own, q, d);
                    for (int i = 0; i < n; ++i)
                      worst = worse(worst,
                                    std::abs(double{want[static_cast<size_t>(i)]} -
                                             got[static_cast<size_t>(
                                                 (layer * VoteCase::kHeads + head) * stride + i)]));
                  }
                // Sums of d products of up to as many ones as queries of a group.
                CHECK(worst <= 1e-6 * d * n_queries * group);
              }
  }

  TEST_CASE("lists are the CPU's from the same scores, the best first, equal ones by number") {
    for (const int n : {1, 2, 64, 700, 5000})
      for (const int m : {1, 2, 63, 700, 1500})
        for (const int kind : {0, 1, 2}) {
          if (m > n) continue;
          CAPTURE(n);
          CAPTURE(m);
          CAPTURE(kind);
          constexpr int kLists = 3;
          const int stride = n + 1, id_stride = m + 2;
          PhiloxStream stream(6, static_cast<uint32_t>(n));
          std::vector<float> all(static_cast<size_t>(kLists * stride));
          for (float& x : all) {
            x = random_float(stream, 4.0f);
            if (kind == 1) x = std::floor(x) * (x < 1 ? -0.0f : 1.0f);  // few, zeros of both signs
            if (kind == 2) x = -2.5f;
          }
          const DeviceBuffer scores(all),
              ids(static_cast<size_t>(kLists * id_stride) * sizeof(int32_t)),
              scratch(static_cast<size_t>(kLists * m) * sizeof(int32_t));
          const ChooseChunksParams p{.ids = ids.as<int32_t>(),
                                     .scores = scores.as<float>(),
                                     .scratch = scratch.as<int32_t>(),
                                     .id_stride = id_stride,
                                     .score_stride = stride,
                                     .n_lists = kLists,
                                     .n = n,
                                     .n_chosen = m};
          require_same_in_graph(ids, [&] { cuda_table().choose_chunks(p, queue().stream()); });
          const std::vector<int32_t> got = ids.vector<int32_t>();
          for (int list = 0; list < kLists; ++list) {
            const auto from = all.begin() + list * stride;
            const auto begin = got.begin() + list * id_stride;
            CHECK(std::vector<int32_t>(begin, begin + m) == choice_of({from, from + n}, m));
          }
        }
  }
}
