// The choice of keys by the votes of a window of queries, the rings that hold the queries, and the
// copies of what they chose.
#include <algorithm>
#include <numeric>

#include "gpu/device_buffer.h"
#include "kernels/copy_keys_case.h"
#include "kernels/key_votes_case.h"
#include "kernels/page/query_ring.h"
#include "kv/policies/pool_votes.h"
#include "ops/selection.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Queries of a case in a ring of the model's heads: those of other KV heads are NaN.
std::vector<unsigned char> ring_of(VoteCase& c, int capacity) {
  const int heads = VoteCase::kHeads * c.n_heads;
  ActBuffer ring(c.dtype, static_cast<size_t>(capacity * heads * c.d));
  for (size_t i = 0; i < ring.size(); ++i) ring.set(i, NAN);
  for (int i = 0; i < c.n_positions; ++i)
    for (int k = 0; k < c.n_heads * c.d; ++k) {
      const int row = (c.n_tokens - c.n_positions + i) % capacity;
      ring.set(static_cast<size_t>(row * heads * c.d + VoteCase::kHead * c.n_heads * c.d + k),
               c.q[static_cast<size_t>(i * c.n_heads * c.d + k)]);
    }
  const auto* bytes = static_cast<const unsigned char*>(ring.data());
  return {bytes, bytes + ring.size() * dtype_bytes(c.dtype)};
}

struct Votes {
  std::vector<float> keys;
  std::vector<float> lse;  // [positions, heads]
};

/// Votes for the keys of the case's KV head, which lie among those of all heads.
Votes votes_on_gpu(VoteCase& c, int capacity) {
  const int heads = VoteCase::kHeads * c.n_heads, stride = c.n_tokens + 3;
  const DeviceBuffer ring(ring_of(c, capacity)), pages(c.pages),
      keys(c.keys.data(), c.keys.size() * dtype_bytes(c.dtype)),
      votes(static_cast<size_t>(VoteCase::kHeads * stride) * sizeof(float)),
      scratch(key_votes_cuda_scratch_bytes(c.n_tokens, c.n_positions, heads)),
      lse(static_cast<size_t>(c.n_positions * heads) * sizeof(float));
  const KeyVotesCudaParams p{.votes = votes.as<float>(),
                             .vote_stride = stride,
                             .q = ring.raw(),
                             .capacity = capacity,
                             .n_heads = heads,
                             .k_pool = keys.raw(),
                             .pages = pages.as<int32_t>(),
                             .first_position = c.n_tokens - c.n_positions,
                             .n_positions = c.n_positions,
                             .n_kv_heads = VoteCase::kHeads,
                             .d = c.d,
                             .dtype = c.dtype,
                             .scale = c.scale,
                             .scratch = scratch.raw(),
                             .lse = lse.as<float>()};
  require_same_in_graph(votes, [&] { cuda_table().key_votes(p, queue().stream()); });
  const std::vector<float> all = votes.vector<float>(), sums = lse.vector<float>();
  const auto begin = all.begin() + VoteCase::kHead * stride;
  Votes result{{begin, begin + c.n_tokens}, {}};
  for (int i = 0; i < c.n_positions; ++i)
    for (int h = 0; h < c.n_heads; ++h)
      result.lse.push_back(sums[static_cast<size_t>(i * heads + VoteCase::kHead * c.n_heads + h)]);
  return result;
}

/// Votes of one list in a row, some of them equal.
std::vector<float> votes_for(int n, int kind) {
  PhiloxStream stream(5, static_cast<uint32_t>(n));
  std::vector<float> votes;
  for (int i = 0; i < n; ++i) {
    const float x = random_float(stream, 1.0f) + 1.0f;
    // Any; few different ones; all equal; most nothing at all.
    votes.push_back(kind == 0     ? x * x * 10
                    : kind == 1   ? std::floor(x * 4)
                    : kind == 2   ? 0.5f
                    : i % 50 == 0 ? x * 1e-30f
                                  : 0.0f);
  }
  return votes;
}

/// The CPU's choice.
std::vector<int32_t> choice_of(const std::vector<float>& votes, int n_chosen, int sinks, int pool) {
  const int n = static_cast<int>(votes.size());
  std::vector<float> pooled(votes.size()), scratch(votes.size() + 16);
  std::vector<int32_t> ids(static_cast<size_t>(n_chosen) + 16);
  kv::pool_votes(votes, pool, pooled.data());
  std::iota(ids.begin(), ids.begin() + sinks, 0);
  float threshold = 0;
  ops::select_top({.ids = ids.data() + sinks,
                   .threshold = &threshold,
                   .scores = pooled.data() + sinks,
                   .n = n - sinks,
                   .m = n_chosen - sinks,
                   .first_id = sinks,
                   .scratch = scratch.data()});
  ids.resize(static_cast<size_t>(n_chosen));
  return ids;
}

constexpr int kLayers = 2, kSlots = 3;

QueryRings rings_of(const DeviceBuffer& rows, int capacity, int row_bytes) {
  return {rows.raw(), kLayers, capacity, row_bytes};
}

}  // namespace

TEST_SUITE("gpu/kernels/key_votes") {
  TEST_CASE("votes are those of the reference, in scattered pages and rings that wrap") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int d : {16, 20, 64, 128})
        for (const int tokens : {1, 64, 65, 700, 2100})
          for (const int positions : {1, 3, 32, 70})
            for (const int heads : {1, 4, 5}) {
              if (positions > tokens) continue;
              CAPTURE(dtype_name(type));
              CAPTURE(d);
              CAPTURE(tokens);
              CAPTURE(positions);
              CAPTURE(heads);
              VoteCase c(type, tokens, positions, heads, d);
              std::vector<float> want_lse(static_cast<size_t>(positions * heads));
              const std::vector<float> want = c.run(key_votes_ref, want_lse);
              const Votes got = votes_on_gpu(c, positions + 5);
              double sum = 0, worst = 0, worst_lse = 0;
              for (size_t t = 0; t < want.size(); ++t) {
                sum += got.keys[t];
                worst = worse(worst, std::abs(double{got.keys[t]} - want[t]));
              }
              for (size_t i = 0; i < got.lse.size(); ++i)
                worst_lse = worse(worst_lse, std::abs(double{got.lse[i]} - want_lse[i]));
              CHECK(worst_lse <= 1e-5);
              CHECK(worst <= 2e-5 * positions * heads);
              CHECK(sum == doctest::Approx(positions * heads).epsilon(1e-4));
            }
  }

  TEST_CASE("scores beyond what f32 holds give finite votes") {
    VoteCase c(DType::f32, 130, 4, 1, 32);
    c.scale = 3e38f;
    for (const float vote : votes_on_gpu(c, 9).keys) CHECK(std::isfinite(vote));
  }
}

TEST_SUITE("gpu/kernels/choose_keys") {
  TEST_CASE("lists are the CPU's, from the same votes") {
    for (const int n : {5, 64, 1000, 1025, 5000})
      for (const int n_chosen : {4, 5, 63, 700, 4999})
        for (const int sinks : {0, 4})
          for (const int pool : {1, 7, 63})
            for (const int kind : {0, 1, 2, 3}) {
              if (n_chosen > n) continue;
              CAPTURE(n);
              CAPTURE(n_chosen);
              CAPTURE(sinks);
              CAPTURE(pool);
              CAPTURE(kind);
              constexpr int kLists = 3;
              const int stride = n + 1, id_stride = n_chosen + 2;
              std::vector<float> all(static_cast<size_t>(kLists * stride), NAN);
              for (int list = 0; list < kLists; ++list) {
                std::vector<float> votes = votes_for(n, kind);
                std::rotate(votes.begin(), votes.begin() + list, votes.end());
                std::ranges::copy(votes, all.begin() + list * stride);
              }
              const DeviceBuffer votes(all), pooled(all.size() * sizeof(float)),
                  ids(static_cast<size_t>(kLists * id_stride) * sizeof(int32_t));
              const ChooseKeysParams p{.ids = ids.as<int32_t>(),
                                       .id_stride = id_stride,
                                       .votes = votes.as<float>(),
                                       .pooled = pooled.as<float>(),
                                       .vote_stride = stride,
                                       .n_lists = kLists,
                                       .n = n,
                                       .n_chosen = n_chosen,
                                       .sinks = sinks,
                                       .pool = pool};
              require_same_in_graph(ids, [&] { cuda_table().choose_keys(p, queue().stream()); });
              const std::vector<int32_t> got = ids.vector<int32_t>();
              for (int list = 0; list < kLists; ++list) {
                const auto from = all.begin() + list * stride;
                const auto begin = got.begin() + list * id_stride;
                CHECK(std::vector<int32_t>(begin, begin + n_chosen) ==
                      choice_of({from, from + n}, n_chosen, sinks, pool));
              }
            }
  }
}

TEST_SUITE("gpu/kernels/copy_keys") {
  TEST_CASE("copies are those of the reference, to the byte") {
    each_copy_keys_case([](CopyKeysCase c) {
      CAPTURE(c.n);
      CAPTURE(c.n_heads);
      CAPTURE(c.row_bytes);
      CAPTURE(c.run);
      const DeviceBuffer k(c.k), v(c.v), k_to(c.k_to), v_to(c.v_to), pages(c.pages),
          to_pages(c.to_pages), ids(c.ids);
      CopyKeysParams p = c.params();
      p.k_from = k.raw();
      p.v_from = v.raw();
      p.k_to = k_to.raw();
      p.v_to = v_to.raw();
      p.from_pages = pages.as<int32_t>();
      p.to_pages = to_pages.as<int32_t>();
      p.ids = ids.as<int32_t>();
      cuda_table().copy_keys(p, queue().stream());
      copy_keys_cpu(c.params(), {0, c.n_heads});
      CHECK(k_to.vector<unsigned char>() == c.k_to);
      CHECK(v_to.vector<unsigned char>() == c.v_to);
    });
  }
}

TEST_SUITE("gpu/kernels/query_ring") {
  TEST_CASE("rows of a ragged step go to their tokens' places, as on the CPU") {
    for (const int row_bytes : {6, 64, 8192})
      for (const int capacity : {5, 40})
        for (const bool tentative : {false, true}) {
          CAPTURE(row_bytes);
          CAPTURE(capacity);
          const std::vector<int32_t> slot = {2, 0, 1}, base = {130, 0, 7}, before = {0, 3, 2},
                                     begin = {0, 1, 60, 60};
          std::vector<unsigned char> q(static_cast<size_t>(64 * row_bytes)),  // padded rows
              rows(static_cast<size_t>(kSlots * kLayers * capacity * row_bytes), 9);
          for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<unsigned char>(i * 7 / 5);
          const DeviceBuffer d_slot(slot), d_base(base), d_before(before), d_begin(begin), d_q(q),
              d_rows(rows);
          WriteQueriesParams p{.rings = rings_of(d_rows, capacity, row_bytes),
                               .q = d_q.raw(),
                               .slot = d_slot.as<int32_t>(),
                               .row_begin = d_begin.as<int32_t>(),
                               .base = d_base.as<int32_t>(),
                               .tentative = tentative ? d_before.as<int32_t>() : nullptr,
                               .n_seqs = 3,
                               .n_rows = 64,
                               .layer = 1};
          cuda_table().write_queries(p, queue().stream());
          p.rings.rows = rows.data();
          p.q = q.data();
          p.slot = slot.data();
          p.row_begin = begin.data();
          p.base = base.data();
          p.tentative = tentative ? before.data() : nullptr;
          write_queries_cpu(p, {0, 3});
          CHECK(d_rows.vector<unsigned char>() == rows);
        }
  }

  TEST_CASE("queries of accepted paths move next to their roots', as on the CPU") {
    for (const int row_bytes : {6, 8192}) {
      constexpr int kCapacity = 20, kNodes = 9;
      const std::vector<int32_t> slot = {1, 2}, position = {1000, 18}, accepted = {4, 2},
                                 path = {1, 3, 4, 7, 0, 0, 0, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0};
      std::vector<unsigned char> rows(
          static_cast<size_t>(kSlots * kLayers * kCapacity * row_bytes));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<unsigned char>(i / 3);
      const DeviceBuffer d_slot(slot), d_position(position), d_accepted(accepted), d_path(path),
          d_rows(rows);
      const std::vector<unsigned char> before = rows;
      MoveQueriesParams p{.rings = rings_of(d_rows, kCapacity, row_bytes),
                          .path = d_path.as<int32_t>(),
                          .n_accepted = d_accepted.as<int32_t>(),
                          .position = d_position.as<int32_t>(),
                          .slot = d_slot.as<int32_t>(),
                          .n_seqs = 2,
                          .n_nodes = kNodes,
                          .n_nodes_held = 8,  // the last of the second path's is not held
                          .max_moves = 6};
      cuda_table().move_queries(p, queue().stream());
      p.rings.rows = rows.data();
      p.path = path.data();
      p.n_accepted = accepted.data();
      p.position = position.data();
      p.slot = slot.data();
      move_queries_cpu(p, {0, 2});
      CHECK(rows != before);
      CHECK(d_rows.vector<unsigned char>() == rows);
    }
  }
}
