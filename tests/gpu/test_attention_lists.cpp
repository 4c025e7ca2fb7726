// Attention of few rows over lists of keys.
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "gpu/attention_on_device.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Lists of a case's sequences, with gaps between them and ids past their ends that no page table
/// has.
class Lists {
 public:
  Lists(const AttentionSpec& spec, int run)
      : kv_heads_(spec.kv_heads), capacity_(keys_of(spec) / run + 3), run_(run) {
    const size_t rows = spec.seqs.size();
    ids_.assign(rows * row_stride(), 1 << 24);
    count_.assign(rows * count_stride(), 1 << 20);
    for (size_t s = 0; s < rows; ++s) rest_.push_back(0);
  }
  /// A random choice of n runs of the tokens before `rest`, as many as there are.
  void choose(int row, int kv_head, int n, int rest, uint32_t seed) {
    std::vector<int32_t> order(static_cast<size_t>(rest / run_));
    std::iota(order.begin(), order.end(), 0);
    PhiloxStream rng(seed, static_cast<uint32_t>(row * 100 + kv_head));
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[rng.below(static_cast<uint32_t>(i))]);
    order.resize(std::min(order.size(), static_cast<size_t>(n)));
    set(row, kv_head, order, rest);
  }
  void set(int row, int kv_head, const std::vector<int32_t>& ids, int rest) {
    std::copy(ids.begin(), ids.end(),
              ids_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row) * row_stride() +
                                                    static_cast<size_t>(kv_head) * head_stride()));
    count_[static_cast<size_t>(row) * count_stride() + static_cast<size_t>(kv_head)] =
        static_cast<int32_t>(ids.size());
    rest_[static_cast<size_t>(row)] = rest;
  }

  KeyLists host() const { return over(ids_.data(), count_.data(), rest_.data()); }
  /// Over the device's copies, which are taken the first time and renewed by later calls.
  KeyLists device() {
    if (on_device_.empty()) {
      for (const auto* from : {&ids_, &count_, &rest_}) on_device_.emplace_back(*from);
    } else {
      size_t i = 0;
      for (const auto* from : {&ids_, &count_, &rest_})
        queue().copy_in(on_device_[i++].raw(), from->data(), from->size() * 4);
      queue().wait();
    }
    return over(on_device_[0].as<int32_t>(), on_device_[1].as<int32_t>(),
                on_device_[2].as<int32_t>());
  }

 private:
  size_t head_stride() const { return static_cast<size_t>(capacity_) + 5; }
  size_t row_stride() const { return head_stride() * static_cast<size_t>(kv_heads_) * 2 + 1; }
  size_t count_stride() const { return static_cast<size_t>(kv_heads_) + 2; }
  KeyLists over(const int32_t* ids, const int32_t* count, const int32_t* rest) const {
    return {.ids = ids,
            .count = count,
            .rest = rest,
            .row_stride = static_cast<int64_t>(row_stride()),
            .head_stride = static_cast<int64_t>(head_stride()),
            .count_stride = static_cast<int>(count_stride()),
            .run = run_};
  }

  int kv_heads_, capacity_, run_;
  std::vector<int32_t> ids_, count_, rest_;
  std::vector<DeviceBuffer> on_device_;
};

/// The keys of lists as copies in pages of pools of their own, which hold NaN elsewhere. Page ids
/// are those of all KV heads of a row, as many as its longest list needs.
class Copies {
 public:
  Copies(const AttentionSpec& spec, const AttentionParams& c, const KeyLists& from)
      : heads_(spec.kv_heads) {
    const int rows = static_cast<int>(spec.seqs.size());
    ids_.assign(static_cast<size_t>(rows) * row_stride_of(spec), 1 << 24);
    row_stride_ = static_cast<int64_t>(row_stride_of(spec));
    std::vector<int> n_pages;
    for (int r = 0; r < rows; ++r) {
      int most = 0;
      for (int h = 0; h < heads_; ++h) {
        count_.push_back(listed_tokens(from, r, h));
        most = std::max(most, count_.back());
      }
      n_pages.push_back((most + kPageTokens - 1) / kPageTokens);
      rest_.push_back(from.rest[r]);
    }
    const int total = std::accumulate(n_pages.begin(), n_pages.end(), 1);
    const size_t row_bytes = static_cast<size_t>(spec.d) * dtype_bytes(spec.dtype);
    k_.assign(static_cast<size_t>(total * heads_ * kPageTokens) * row_bytes, 0xff);
    v_ = k_;
    int next = total;  // the first page is nobody's
    for (int r = 0; r < rows; ++r) {
      int32_t* const ids = ids_.data() + r * row_stride_;
      for (int i = 0; i < n_pages[static_cast<size_t>(r)]; ++i) ids[i] = --next;
      for (int h = 0; h < heads_; ++h)
        for (int i = 0; i < listed_tokens(from, r, h); ++i) {
          const int token = listed_token(from, list_of(from, r, h), i);
          const int32_t page = c.page_table[r * c.max_pages + token / kPageTokens];
          const size_t at = place(ids[i / kPageTokens], h, i) * row_bytes,
                       source = place(page, h, token) * row_bytes;
          std::copy_n(static_cast<const unsigned char*>(c.k_pool) + source, row_bytes, &k_[at]);
          std::copy_n(static_cast<const unsigned char*>(c.v_pool) + source, row_bytes, &v_[at]);
        }
    }
    for (const auto* array : {&ids_, &count_, &rest_}) on_device_.emplace_back(*array);
    for (const auto* pool : {&k_, &v_}) on_device_.emplace_back(*pool);
  }
  KeyLists device() const {
    return {.ids = on_device_[0].as<int32_t>(),
            .count = on_device_[1].as<int32_t>(),
            .rest = on_device_[2].as<int32_t>(),
            .row_stride = row_stride_,
            .head_stride = 0,
            .count_stride = heads_,
            .run = kPageTokens,
            .k_pool = on_device_[3].raw(),
            .v_pool = on_device_[4].raw()};
  }

 private:
  static size_t row_stride_of(const AttentionSpec& spec) {
    return static_cast<size_t>(keys_of(spec) / kPageTokens + 2);
  }
  size_t place(int32_t page, int head, int token) const {
    return static_cast<size_t>((page * heads_ + head) * kPageTokens + token % kPageTokens);
  }

  int heads_;
  int64_t row_stride_ = 0;
  std::vector<int32_t> ids_, count_, rest_;
  std::vector<unsigned char> k_, v_;
  std::vector<DeviceBuffer> on_device_;
};

/// Lists of other lengths for every sequence and KV head: none, one, some around 64, many, all.
Lists ragged_lists(const AttentionSpec& spec, int run, uint32_t seed) {
  constexpr std::array kCounts = {0, 1, 63, 64, 65, 200, 1, 700, 31, 0, 97, 5000};
  Lists lists(spec, run);
  for (size_t s = 0; s < spec.seqs.size(); ++s)
    for (int h = 0; h < spec.kv_heads; ++h) {
      const int base = spec.seqs[s].base, pick = static_cast<int>(seed + s * 5) + h * 3;
      // Every third sequence reads nothing but its list and its new rows.
      const int rest = s % 3 == 0 ? base : base - base / 5;
      lists.choose(static_cast<int>(s), h, kCounts[static_cast<size_t>(pick) % kCounts.size()],
                   rest, seed);
    }
  return lists;
}

void check_against_reference(const AttentionSpec& spec, Lists lists) {
  AttentionCase c(spec);
  AttentionOnDevice device(c);
  device.params().lists = lists.device();
  device.run();
  AttentionParams reference = c.params();
  reference.lists = lists.host();
  compare(device, c, reference);
  const Copies copies(spec, c.params(), lists.host());
  device.params().lists = copies.device();
  device.run();
  compare(device, c, reference);
}

const std::vector<SeqShape> kRagged = {{700, 1},  {1500, 3}, {64, 1},  {0, 2},
                                       {2100, 5}, {130, 0},  {300, 8}, {999, 2}};

}  // namespace

TEST_SUITE("gpu/kernels/attention_lists") {
  TEST_CASE(
      "lists and copies of what they name agree with the reference, in chains and trees, together "
      "with a range of keys") {
    uint32_t n = 0;
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int d : {64, 128, 80, 256})
        for (const int group : {1, 2, 4, 5, 8})
          for (const bool tree : {false, true}) {
            if (dtype == DType::f32 && group != 4 && group != 5) continue;
            AttentionSpec s{.d = d,
                            .group = group,
                            .kv_heads = n % 2 == 0 ? 2 : 3,
                            .seqs = kRagged,
                            .tree = tree,
                            .dtype = dtype,
                            .seed = n};
            s.out_dtype = n % 3 == 0 ? DType::f32 : dtype;
            for (const int run : {1, n % 2 == 0 ? 8 : 64, n % 2 == 0 ? 16 : 2}) {
              CAPTURE(run);
              check_against_reference(s, ragged_lists(s, run, n++));
            }
          }
  }

  TEST_CASE("one sequence alone, more than a warp of them, trees of many tiles, tentative rows") {
    for (const int d : {128, 64, 16, 256}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      std::vector<SeqShape> many;
      for (int i = 0; i < 40; ++i) many.push_back({i * 61 % 900, i % 4});
      for (const std::vector<SeqShape>& seqs : {std::vector<SeqShape>{{5000, 1}},
                                                {{5000, 100}, {64, 3}},
                                                {{700, 3, 9}, {90, 1, 70}},
                                                many})
        for (const bool tree : {false, true}) {
          s.seqs = seqs;
          s.tree = tree;
          ++s.seed;
          check_against_reference(s, ragged_lists(s, 1, s.seed));
          check_against_reference(s, ragged_lists(s, 1, s.seed + 5));
        }
    }
  }

  TEST_CASE(
      "a list of all tokens, and copies of them, give the bits of the range that they replace") {
    for (const int d : {64, 128, 80})
      for (const int length : {64, 640, 2048, 4096})
        for (const int rows : {1, 5}) {
          AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
          s.seqs = {{length, rows}, {length / 2, 1}};
          AttentionCase c(s);
          AttentionOnDevice device(c);
          const FewRowsMemory memory(device.bounds());
          // A window beyond the text: bounded keys are divided into chunks as those of lists.
          device.params().window = 1 << 20;
          device.run(memory);
          device.params().window = 0;
          const auto want = device.out_bytes();
          const auto want_lse = device.lse();
          Lists lists(s, 1);
          for (int h = 0; h < s.kv_heads; ++h) {
            std::vector<int32_t> ids(static_cast<size_t>(length));
            std::iota(ids.begin(), ids.end(), 0);
            lists.set(0, h, ids, length);
            ids.resize(static_cast<size_t>(length / 2 / 64 * 64));
            lists.set(1, h, ids, length / 2 / 64 * 64);
          }
          device.params().lists = lists.device();
          device.run(memory);
          CAPTURE(s.text());
          CHECK(device.out_bytes() == want);
          CHECK(device.lse() == want_lse);
          const Copies copies(s, c.params(), lists.host());
          device.params().lists = copies.device();
          device.run(memory);
          CHECK(device.out_bytes() == want);
          CHECK(device.lse() == want_lse);
        }
  }

  TEST_CASE("every body gives the same bits, on every run, settled keys or not") {
    for (const int d : {64, 128, 256}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .seqs = kRagged, .dtype = DType::bf16};
      AttentionCase c(s);
      AttentionOnDevice device(c);
      Lists lists = ragged_lists(s, 1, 3);
      const Copies copies(s, c.params(), lists.host());
      const FewRowsMemory memory(device.bounds());
      for (const KeyLists& read : {lists.device(), copies.device()}) {
        device.params().lists = read;
        device.run(memory, false, cuda::GpuIsa::portable);
        const auto want = device.out_bytes();
        const auto want_lse = device.lse();
        for (int i = 0; i < 10; ++i) {
          device.run(memory, i % 2 == 0);
          REQUIRE(device.out_bytes() == want);
          REQUIRE(device.lse() == want_lse);
        }
      }
    }
  }

  TEST_CASE("an empty list of an empty range gives out = 0 and lse = -inf") {
    for (const int d : {80, 64, 128})
      for (const bool tree : {false, true}) {
        AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
        s.seqs = {{500, 3}, {40, 1}};
        s.tree = tree;
        AttentionCase c(s);
        AttentionOnDevice device(c);
        Lists lists(s, 1);
        for (int row = 0; row < 2; ++row)
          for (int h = 0; h < 2; ++h) lists.set(row, h, {}, 10000);
        device.params().lists = lists.device();
        device.run();
        const std::vector<float> lse = device.lse(), out = device.out();
        CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return x == -kInf; }));
        CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == 0.0f; }));
      }
  }

  TEST_CASE("lists belong to rows of the page table, whichever sequences a step has") {
    AttentionSpec s{.d = 128, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
    s.seqs = {{700, 2}, {300, 1}, {900, 2}, {650, 1}};
    AttentionCase c(s);
    AttentionOnDevice device(c);
    AttentionParams reference = c.params();
    const std::vector<int32_t> slot = {2, 0, 3, 1};
    std::vector<int32_t> table(4 * static_cast<size_t>(reference.max_pages));
    for (int i = 0; i < 4; ++i)
      std::copy_n(reference.page_table + i * reference.max_pages, reference.max_pages,
                  table.begin() + slot[static_cast<size_t>(i)] * reference.max_pages);
    Lists lists(s, 1);
    for (int i = 0; i < 4; ++i)
      for (int h = 0; h < 2; ++h)
        lists.choose(slot[static_cast<size_t>(i)], h, 100 + 150 * i + 31 * h, 280 + 10 * i, 4);
    const DeviceBuffer slots(slot), tables(table);
    device.params().slot = slots.as<int32_t>();
    device.params().page_table = tables.as<int32_t>();
    device.params().lists = lists.device();
    device.run();
    reference.slot = slot.data();
    reference.page_table = table.data();
    reference.lists = lists.host();
    compare(device, c, reference);
  }

  TEST_CASE("one graph serves lists that grow, shrink and go") {
    for (const int d : {128, 80}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      s.seqs = {{2100, 3}, {700, 1}};
      AttentionCase c(s);
      AttentionOnDevice device(c);
      const FewRowsMemory memory(device.bounds());
      Lists lists(s, 1);
      device.params().lists = lists.device();
      const cuda::Graph graph(queue(), [&] { device.run(memory, true); });
      for (const int n : {1, 2000, 64, 0, 333}) {
        for (int h = 0; h < 2; ++h) {
          lists.choose(0, h, n, 2000, static_cast<uint32_t>(n));
          lists.choose(1, h, n / 3, n % 2 == 0 ? 690 : 0, static_cast<uint32_t>(n));
        }
        (void)lists.device();
        graph.launch(queue());
        AttentionParams reference = c.params();
        reference.lists = lists.host();
        compare(device, c, reference);
      }
    }
  }
}
