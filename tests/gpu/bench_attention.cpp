// Times attention of few rows on a GPU: bytes of K and V a second, what verifying rows costs beside
// decoding one, and what attention adds to layers whose other kernels run before and after it. Not
// a test; run it by hand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/attention/few_rows_plan.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda_table.h"
#include "kv/policies/pool_votes.h"
#include "machine/gpu_hardware.h"
#include "tensor/cuda.h"
#include "tensor/gpu_isa.h"

using namespace tandem;

namespace {

double read_limit = 0;       // bytes/s, measured
constexpr int kLayers = 16;  // calls of a graph, each on pages of its own

struct Memory {
  void* at;
  explicit Memory(size_t bytes) : at(cuda::allocate(0, std::max<size_t>(bytes, 16))) {}
  Memory(const Memory&) = delete;
  ~Memory() { cuda::free_memory(at); }
};

struct Setting {
  std::string name;
  std::vector<int> lengths;
  int rows = 1;
  bool tree = false;
  int heads = 32, kv_heads = 8, d = 128;
  int listed = 0;  // tokens of a list, ascending, in place of all that are committed; 0: no lists
  int run = 1;     // of a list
  int pool = 1;    // above 1: the list holds the best of random votes, averaged over neighbours
  bool derived = false;  // a list's keys lie in pages of their own
  bool scored = false;   // leaves scores of keys

  /// Tokens that a sequence reads.
  int reads(int length) const { return listed == 0 ? length : listed + rows; }
};

/// Fills device memory with random numbers.
void fill_random(cuda::Queue& queue, void* to, size_t bytes, DType type = DType::bf16) {
  cuda_table().fill_random(
      {to, 7, 1, 0, static_cast<int64_t>(bytes / dtype_bytes(type)), 0.5f, type}, queue.stream());
  cuda::launched("fill_random", queue.stream());
}

template <class T>
void put(cuda::Queue& queue, const Memory& to, const std::vector<T>& from) {
  queue.copy_in(to.at, from.data(), from.size() * sizeof(T));
  queue.wait();
}

/// Median seconds of a graph of kLayers times what `layer` puts on the queue.
template <class Layer>
double time_graph(cuda::Queue& queue, const Layer& layer) {
  const cuda::Graph graph(queue, [&] {
    for (size_t i = 0; i < kLayers; ++i) layer(i);
  });
  std::vector<double> seconds;
  cuda::Event start(true), stop(true);
  for (int i = 0; i < 23; ++i) {
    start.record(queue);
    graph.launch(queue);
    stop.record(queue);
    stop.wait();
    if (i >= 3) seconds.push_back(static_cast<double>(stop.ms_since(start)) * 1e-3 / kLayers);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// What a layer runs around attention: product of q, k and v, rotation, output product. The
/// products take at most 8 rows; their time is that of their weights.
class Around {
 public:
  Around(cuda::Queue& queue, const AttentionParams& p, int rows, const std::vector<int32_t>& pages,
         const std::vector<int32_t>& in_page, const std::vector<int32_t>& pos)
      : queue_(queue),
        rows_(rows),
        dim_(p.n_heads * p.head_dim),
        qkv_width_((p.n_heads + 2 * p.n_kv_heads) * p.head_dim),
        hidden_(floats(rows * dim_)),
        qkv_(floats(rows * qkv_width_)),
        norm_(floats(dim_)),
        n_angles_((*std::max_element(pos.begin(), pos.end()) + 1) * p.head_dim / 2),
        angles_(floats(n_angles_)),
        weights_(kSets * weight_bytes()),
        pages_(pages.size() * 4),
        in_page_(pages.size() * 4),
        pos_(pages.size() * 4) {
    fill_random(queue, hidden_.at, floats(rows * dim_), DType::f32);
    fill_random(queue, norm_.at, floats(dim_), DType::f32);
    fill_random(queue, angles_.at, floats(n_angles_), DType::f32);
    fill_random(queue, weights_.at, kSets * weight_bytes());
    fill_random(queue, qkv_.at, floats(rows * qkv_width_));
    put(queue, pages_, pages);
    put(queue, in_page_, in_page);
    put(queue, pos_, pos);
  }

  void before(size_t layer, const AttentionParams& p) const {
    linear(qkv_.at, hidden_.at, weight(layer), static_cast<const float*>(norm_.at), qkv_width_,
           DType::bf16);
    const auto ints = [](const Memory& m) { return static_cast<const int32_t*>(m.at); };
    const auto* angles = static_cast<const float*>(angles_.at);
    cuda_table().rope_kv(
        {const_cast<void*>(p.q), const_cast<void*>(p.k_pool), const_cast<void*>(p.v_pool), qkv_.at,
         angles, angles, ints(pos_), ints(pages_), ints(in_page_), rows_, p.n_heads, p.n_kv_heads,
         p.head_dim, DType::bf16},
        queue_.stream());
    cuda::launched("rope_kv", queue_.stream());
  }
  void after(size_t layer, const AttentionParams& p) const {
    linear(hidden_.at, p.out, weight(layer) + int64_t{dim_} * qkv_width_, nullptr, dim_,
           DType::f32);
  }

 private:
  static constexpr size_t kSets = 4;  // of weights, more than L2 holds

  static size_t floats(int n) { return static_cast<size_t>(n) * 4; }
  size_t weight_bytes() const {
    return static_cast<size_t>(dim_) * static_cast<size_t>(qkv_width_ + dim_) * 2;
  }
  const bf16* weight(size_t layer) const {
    return reinterpret_cast<const bf16*>(static_cast<const char*>(weights_.at) +
                                         layer % kSets * weight_bytes());
  }
  void linear(void* y, const void* x, const bf16* w, const float* norm, int out,
              DType y_type) const {
    SkinnyLinearParams p{};
    p.y = y;
    p.x = x;
    p.w = w;
    p.norm_weight = norm;
    p.norm_eps = 1e-5f;
    p.rows = std::min(rows_, 8);
    p.out = out;
    p.in = dim_;
    p.y_type = y_type;
    p.accumulate = y_type == DType::f32;
    p.stages = 4;
    cuda_table().skinny_linear(p, queue_.stream());
    cuda::launched("skinny_linear", queue_.stream());
  }

  cuda::Queue& queue_;
  int rows_, dim_, qkv_width_;
  Memory hidden_, qkv_, norm_;
  int n_angles_;
  Memory angles_, weights_, pages_, in_page_, pos_;
};

/// The `n_chosen` best of n tokens, in their order, by votes as uneven as attention's, averaged
/// over `pool` neighbours as snapkv does.
std::vector<int32_t> best_of_votes(PhiloxStream& rng, int n, int n_chosen, int pool) {
  std::vector<float> votes(static_cast<size_t>(n)), pooled(votes.size());
  for (float& vote : votes) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += rng.uniform();
    vote = static_cast<float>(std::exp(2 * std::sqrt(3.0) * (sum - 2)));  // of deviation 2
  }
  kv::pool_votes(votes, pool, pooled.data());
  std::vector<int32_t> ids(votes.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + n_chosen;
  std::nth_element(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    return pooled[static_cast<size_t>(a)] > pooled[static_cast<size_t>(b)];
  });
  ids.erase(end, ids.end());
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// Lists whose keys lie in pages of their own, scattered, other ones in every layer of a graph.
class Derived {
 public:
  Derived(cuda::Queue& queue, const Setting& s)
      : s_(s),
        pages_((s.listed + 63) / 64),
        ids_(s.lengths.size() * static_cast<size_t>(pages_) * 4),
        count_(s.lengths.size() * static_cast<size_t>(s.kv_heads) * 4),
        rest_(s.lengths.size() * 4),
        k_(kLayers * layer_bytes()),
        v_(kLayers * layer_bytes()) {
    fill_random(queue, k_.at, kLayers * layer_bytes());
    fill_random(queue, v_.at, kLayers * layer_bytes());
    std::vector<int32_t> ids(s.lengths.size() * static_cast<size_t>(pages_)), rest;
    std::iota(ids.begin(), ids.end(), 0);
    PhiloxStream rng(4, 1);
    for (size_t i = ids.size(); i > 1; --i)
      std::swap(ids[i - 1], ids[rng.below(static_cast<uint32_t>(i))]);
    for (const int n : s.lengths) rest.push_back(n - s.rows);
    put(queue, ids_, ids);
    put(queue, count_,
        std::vector<int32_t>(s.lengths.size() * static_cast<size_t>(s.kv_heads), s.listed));
    put(queue, rest_, rest);
  }
  KeyLists of_layer(size_t layer) const {
    return {.ids = static_cast<const int32_t*>(ids_.at),
            .count = static_cast<const int32_t*>(count_.at),
            .rest = static_cast<const int32_t*>(rest_.at),
            .row_stride = pages_,
            .head_stride = 0,
            .count_stride = s_.kv_heads,
            .run = 64,
            .k_pool = static_cast<const char*>(k_.at) + layer * layer_bytes(),
            .v_pool = static_cast<const char*>(v_.at) + layer * layer_bytes()};
  }

 private:
  size_t layer_bytes() const {
    return s_.lengths.size() * static_cast<size_t>(pages_ * s_.kv_heads * 64 * s_.d) * 2;
  }

  const Setting& s_;
  int pages_;  // of a sequence
  Memory ids_, count_, rest_, k_, v_;
};

/// Lists of every layer, sequence and KV head: the layers of a graph read different keys.
class Lists {
 public:
  Lists(cuda::Queue& queue, const Setting& s)
      : s_(s),
        layer_ids_(s.lengths.size() * static_cast<size_t>(s.kv_heads * runs())),
        ids_(kLayers * layer_ids_ * 4),
        count_(s.lengths.size() * static_cast<size_t>(s.kv_heads) * 4),
        rest_(s.lengths.size() * 4) {
    PhiloxStream rng(3, 1);
    std::vector<int32_t> ids, rest;
    for (const int n : s.lengths) rest.push_back(n - s.rows);
    for (int layer = 0; layer < kLayers; ++layer)
      for (const int n : rest)
        for (int h = 0; h < s.kv_heads; ++h) {
          if (s.pool > 1) {
            const auto best = best_of_votes(rng, n, s.listed, s.pool);
            ids.insert(ids.end(), best.begin(), best.end());
            continue;
          }
          // Each of the runs with the same chance, in their order.
          int left = runs();
          const int of = n / s.run;
          for (int i = 0; i < of && left > 0; ++i)
            if (rng.below(static_cast<uint32_t>(of - i)) < static_cast<uint32_t>(left)) {
              ids.push_back(i);
              --left;
            }
        }
    put(queue, ids_, ids);
    put(queue, count_,
        std::vector<int32_t>(s.lengths.size() * static_cast<size_t>(s.kv_heads), runs()));
    put(queue, rest_, rest);
  }
  KeyLists of_layer(size_t layer) const {
    return {.ids = static_cast<const int32_t*>(ids_.at) + layer * layer_ids_,
            .count = static_cast<const int32_t*>(count_.at),
            .rest = static_cast<const int32_t*>(rest_.at),
            .row_stride = int64_t{s_.kv_heads} * runs(),
            .head_stride = runs(),
            .count_stride = s_.kv_heads,
            .run = s_.run};
  }

 private:
  int runs() const { return s_.listed / s_.run; }

  const Setting& s_;
  size_t layer_ids_;
  Memory ids_, count_, rest_;
};

/// Seconds that a call takes: in a graph of calls alone, or, `around`, what it adds to a graph of
/// layers without it.
double time_call(cuda::Queue& queue, const Setting& s, bool around) {
  const int n_seqs = static_cast<int>(s.lengths.size()), rows = n_seqs * s.rows;
  const int longest = *std::max_element(s.lengths.begin(), s.lengths.end());
  const int max_pages = (longest + 63) / 64;
  size_t pages = 0;
  for (const int n : s.lengths) pages += static_cast<size_t>((n + 63) / 64);
  const size_t page_bytes = static_cast<size_t>(s.kv_heads) * 64 * static_cast<size_t>(s.d) * 2;
  // Copies until the working set is far larger than L2; around others, as in a model, all layers'.
  const size_t copies =
      around ? kLayers
             : std::clamp<size_t>((size_t{1} << 30) / (pages * page_bytes * 2) + 1, 1, kLayers);
  const size_t n_q = static_cast<size_t>(rows * s.heads * s.d);
  Memory k(pages * copies * page_bytes), v(pages * copies * page_bytes), q(n_q * 2), out(n_q * 2),
      lse(static_cast<size_t>(rows * s.heads) * 4), begin(static_cast<size_t>(n_seqs + 1) * 4),
      base(static_cast<size_t>(n_seqs) * 4), pos(static_cast<size_t>(rows) * 4),
      mask(static_cast<size_t>(rows) * 8),
      tables(copies * static_cast<size_t>(n_seqs * max_pages) * 4);
  fill_random(queue, k.at, pages * copies * page_bytes);
  fill_random(queue, v.at, pages * copies * page_bytes);
  fill_random(queue, q.at, n_q * 2);
  std::vector<int32_t> order(pages * copies),
      table(copies * static_cast<size_t>(n_seqs * max_pages), -1);
  std::iota(order.begin(), order.end(), 0);
  PhiloxStream stream(1, 1);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[stream.below(static_cast<uint32_t>(i))]);
  size_t next = 0;
  for (size_t c = 0; c < copies; ++c)
    for (int i = 0; i < n_seqs; ++i)
      for (int page = 0; page * 64 < s.lengths[static_cast<size_t>(i)]; ++page)
        table[(c * static_cast<size_t>(n_seqs) + static_cast<size_t>(i)) *
                  static_cast<size_t>(max_pages) +
              static_cast<size_t>(page)] = order[next++];
  std::vector<int32_t> begins, bases, positions;
  std::vector<uint64_t> masks;
  for (int i = 0; i <= n_seqs; ++i) begins.push_back(i * s.rows);
  for (const int n : s.lengths) bases.push_back(n - s.rows);
  for (int i = 0; i < rows; ++i) {  // a binary tree
    const int row = i % s.rows, parent = (row - 1) / 2;
    const size_t first = static_cast<size_t>(i - row);
    positions.push_back(row == 0 ? bases[static_cast<size_t>(i / s.rows)]
                                 : positions[first + static_cast<size_t>(parent)] + 1);
    masks.push_back((row == 0 ? 0 : masks[first + static_cast<size_t>(parent)]) | uint64_t{1}
                                                                                      << row);
  }
  put(queue, tables, table);
  put(queue, begin, begins);
  put(queue, base, bases);
  put(queue, pos, positions);
  put(queue, mask, masks);
  const CudaTable& ops = cuda_table();
  const AttentionBounds bounds{.max_seqs = n_seqs,
                               .max_rows = s.rows,
                               .max_tokens = longest,
                               .n_heads = s.heads,
                               .n_kv_heads = s.kv_heads,
                               .head_dim = s.d,
                               .multiprocessors = cuda::gpu().multiprocessors,
                               .lists = true,
                               .scores = s.scored};
  const Memory workspace(attention_few_rows_workspace_bytes(bounds)),
      counters(attention_few_rows_counter_bytes(bounds));
  AttentionParams p{};
  p.out = out.at;
  p.lse = static_cast<float*>(lse.at);
  p.q = q.at;
  p.k_pool = k.at;
  p.v_pool = v.at;
  p.row_begin = static_cast<const int32_t*>(begin.at);
  p.base = static_cast<const int32_t*>(base.at);
  p.pos = static_cast<const int32_t*>(pos.at);
  p.tree_mask = s.tree ? static_cast<const uint64_t*>(mask.at) : nullptr;
  p.dtype = p.out_dtype = DType::bf16;
  p.n_seqs = n_seqs;
  p.max_pages = max_pages;
  p.n_heads = s.heads;
  p.n_kv_heads = s.kv_heads;
  p.head_dim = s.d;
  p.mask_words = 1;
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  std::optional<Lists> lists;
  std::optional<Derived> derived;
  if (s.derived)
    derived.emplace(queue, s);
  else if (s.listed > 0)
    lists.emplace(queue, s);
  const int64_t room = int64_t{s.kv_heads} * max_pages * 64;  // for a sequence's scores
  const Memory scores(s.scored ? static_cast<size_t>(room * n_seqs) * kLayers * 2 : 0),
      subtracted(static_cast<size_t>(n_seqs * s.heads) * 4);
  const auto attention = [&](size_t i) {
    if (lists) p.lists = lists->of_layer(i);
    if (derived) p.lists = derived->of_layer(i);
    if (s.scored)
      p.scores = {.at = static_cast<f16*>(scores.at) + static_cast<int64_t>(i) * n_seqs * room,
                  .lse = static_cast<const float*>(subtracted.at),
                  .row_stride = room,
                  .head_stride = room / s.kv_heads,
                  .lse_stride = s.heads};
    p.page_table = static_cast<const int32_t*>(tables.at) +
                   i % copies * static_cast<size_t>(n_seqs * max_pages);
    ops.attention_few_rows(p, {s.rows, longest, i > 0, counters.at, workspace.at}, queue.stream());
    cuda::launched("attention_few_rows", queue.stream());
  };
  if (!around) return time_graph(queue, attention);
  std::vector<int32_t> row_page, in_page;
  for (int i = 0; i < rows; ++i) {
    const size_t seq = static_cast<size_t>(i / s.rows);
    const int slot = bases[seq] + i % s.rows;
    row_page.push_back(
        table[seq * static_cast<size_t>(max_pages) + static_cast<size_t>(slot / 64)]);
    in_page.push_back(slot % 64);
  }
  const Around others(queue, p, rows, row_page, in_page, positions);
  const auto layer = [&](bool whole) {
    return time_graph(queue, [&](size_t i) {
      others.before(i, p);
      if (whole) attention(i);
      others.after(i, p);
    });
  };
  return layer(true) - layer(false);
}

/// Name that a case must hold to run; empty: all.
std::string wanted;

double report(cuda::Queue& queue, const Setting& s, bool around = false) {
  if (s.name.find(wanted) == std::string::npos) return 0;
  const double seconds = time_call(queue, s, around);
  double tokens = 0;
  for (const int n : s.lengths) tokens += s.reads(n);
  const double bytes = tokens * s.kv_heads * s.d * 4;
  fmt::print(
      R"({{"case":"{}","in":"{}","heads":"{}/{}","d":{},"rows":{},"us":{:.2f},"tb_s":{:.3f},"of_limit":{:.3f}}})"
      "\n",
      s.name, around ? "layers" : "calls", s.heads, s.kv_heads, s.d, s.rows, seconds * 1e6,
      bytes / seconds * 1e-12, bytes / seconds / read_limit);
  std::fflush(stdout);
  return seconds;
}

/// Lists of a long text against as many keys in one range.
void report_lists(cuda::Queue& queue) {
  struct Case {
    const char* name;
    int n_seqs, length, listed, rows, d, run, pool;
    bool derived = false;
  };
  for (const Case& c : {Case{"B16 2K lists of 32K", 16, 32768, 2048, 1, 128, 1, 1},
                        {"B16 2K lists of 32K, snapkv's", 16, 32768, 2048, 1, 128, 1, 7},
                        {"B4 4K lists of 96K, snapkv's", 4, 98304, 4096, 1, 128, 1, 7},
                        {"B28 2K lists of 32K", 28, 32768, 2048, 1, 128, 1, 1},
                        {"B4 4K lists of 96K", 4, 98304, 4096, 1, 128, 1, 1},
                        {"B16 2K lists of 32K, 4 rows", 16, 32768, 2048, 4, 128, 1, 1},
                        {"B64 2K lists of 8K", 64, 8192, 2048, 1, 64, 1, 1},
                        {"B16 2K lists of 32K, runs of 8", 16, 32768, 2048, 1, 128, 8, 1},
                        {"B16 2K lists of 32K, runs of 64", 16, 32768, 2048, 1, 128, 64, 1},
                        {"B16 8K lists of 32K", 16, 32768, 8192, 1, 128, 1, 1},
                        {"B16 2K lists of 32K, derived pages", 16, 32768, 2048, 1, 128, 1, 1, true},
                        {"B28 2K lists of 32K, derived pages", 28, 32768, 2017, 1, 128, 1, 1, true},
                        {"B4 4K lists of 96K, derived pages", 4, 98304, 4096, 1, 128, 1, 1, true},
                        {"B64 2K lists of 8K, derived pages", 64, 8192, 2048, 1, 64, 1, 1, true}}) {
    Setting range{fmt::format("{}: a range", c.name), {}, c.rows};
    range.d = c.d;
    range.lengths.assign(static_cast<size_t>(c.n_seqs), c.listed + c.rows);
    Setting list = range;
    list.name = c.name;
    list.lengths.assign(static_cast<size_t>(c.n_seqs), c.length);
    list.listed = c.listed;
    list.run = c.run;
    list.pool = c.pool;
    list.derived = c.derived;
    const double contiguous = report(queue, range), scattered = report(queue, list);
    if (contiguous > 0 && scattered > 0)
      fmt::print(R"({{"case":"{}, rate of the range's","ratio":{:.3f}}})"
                 "\n",
                 c.name, contiguous / scattered);
  }
}

/// A verification that leaves scores against one that does not, and the choice of all layers' lists
/// by them: the target's model has `layers`.
void report_scores(cuda::Queue& queue, const std::string& name, int n_seqs, int length, int rows,
                   int layers, int budget) {
  Setting s{name, std::vector<int>(static_cast<size_t>(n_seqs), length), rows};
  const double plain = report(queue, s);
  s.name += ", scores";
  s.scored = true;
  const double scored = report(queue, s);
  if (plain > 0 && scored > 0)
    fmt::print(R"({{"case":"{} over without","ratio":{:.4f}}})"
               "\n",
               s.name, scored / plain);
  const std::string choosing = name + ", choosing";
  if (choosing.find(wanted) == std::string::npos) return;
  const int stride = (length + 63) / 64 * 64, recent = budget / 2, n_chosen = budget - recent;
  const size_t lists = static_cast<size_t>(n_seqs * layers * s.kv_heads);
  const Memory scores(lists * static_cast<size_t>(stride) * 2),
      ids(lists * static_cast<size_t>(n_chosen) * 4),
      count(static_cast<size_t>(n_seqs * s.kv_heads) * 4), rest(static_cast<size_t>(n_seqs) * 4),
      slot(static_cast<size_t>(n_seqs) * 4), begin(static_cast<size_t>(n_seqs + 1) * 4),
      base(static_cast<size_t>(n_seqs) * 4), layer(static_cast<size_t>(layers) * 4);
  // Logarithms of weights whose deviation is 2, as those of votes above.
  std::vector<f16> some(size_t{1} << 20);
  PhiloxStream rng(4, 1);
  for (f16& score : some) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += rng.uniform();
    score = to_f16(static_cast<float>(2 * std::sqrt(3.0) * (sum - 2) - 8));
  }
  for (size_t at = 0; at < lists * static_cast<size_t>(stride); at += some.size())
    queue.copy_in(static_cast<f16*>(scores.at) + at, some.data(),
                  std::min(some.size(), lists * static_cast<size_t>(stride) - at) * 2);
  std::vector<int32_t> numbers(static_cast<size_t>(n_seqs)), begins,
      all(static_cast<size_t>(layers));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i <= n_seqs; ++i) begins.push_back(i * rows);
  put(queue, slot, numbers);
  put(queue, begin, begins);
  put(queue, layer, all);
  put(queue, base, std::vector<int32_t>(static_cast<size_t>(n_seqs), length - rows));
  const auto ints = [](const Memory& m) { return static_cast<int32_t*>(m.at); };
  const ChooseScoredParams p{.ids = ints(ids),
                             .count = ints(count),
                             .rest = ints(rest),
                             .row_stride = int64_t{layers} * s.kv_heads * n_chosen,
                             .id_stride = n_chosen,
                             .scores = static_cast<const f16*>(scores.at),
                             .layers = ints(layer),
                             .score_row_stride = int64_t{layers} * s.kv_heads * stride,
                             .score_stride = stride,
                             .slot = ints(slot),
                             .row_begin = ints(begin),
                             .base = ints(base),
                             .n_seqs = n_seqs,
                             .n_layers = layers,
                             .n_kv_heads = s.kv_heads,
                             .n_chosen = n_chosen,
                             .recent = recent};
  const double seconds = time_graph(queue, [&](size_t) {
    cuda_table().choose_scored(p, queue.stream());
    cuda::launched("choose_scored", queue.stream());
  });
  fmt::print(R"({{"case":"{}","layers":{},"budget":{},"us":{:.1f},"read_tb_s":{:.3f}}})"
             "\n",
             choosing, layers, budget, seconds * 1e6,
             static_cast<double>(lists) * stride * 2 / seconds * 1e-12);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) wanted = argv[1];
  if (cuda::device_count() == 0) {
    fmt::print(stderr, "no GPU: {}\n", cuda::why_none());
    return 77;
  }
  cuda::force_gpu_isa_by_environment();
  read_limit = machine::measure_gpu_read_gbps({Device::Kind::cuda, 0}) * 1e9;
  fmt::print(R"({{"gpu":"{}","kernels":"{}","read_tb_s":{:.3f}}})"
             "\n",
             cuda::device_info(0).name, cuda::gpu_isa_name(cuda::gpu().isa), read_limit * 1e-12);
  cuda::Queue queue(0);
  const auto same = [](int n, int length) {
    return std::vector<int>(static_cast<size_t>(n), length);
  };
  for (const Setting& s :
       {Setting{"B1 1K", same(1, 1024)},
        {"B1 8K", same(1, 8192)},
        {"B1 96K", same(1, 98304)},
        {"B8 4K", same(8, 4096)},
        {"B32 8K", same(32, 8192)},
        {"B32 8K tree", same(32, 8192), 5, true},
        {"B16 512 draft", same(16, 520)},
        {"B96 512 draft", same(96, 520)},
        {"B16 2K draft", same(16, 2056)},
        {"B28 2K draft", same(28, 2056)},
        {"B4 4K draft", same(4, 4104)},
        {"B8 4K draft", same(8, 4104)},
        {"B4 512 draft", same(4, 520)},
        {"B2 2K draft", same(2, 2056)},
        {"B8 2K draft", same(8, 2056)},
        {"B4 8K draft", same(4, 8200)},
        {"B12 2K draft", same(12, 2056)},
        {"B6 500 to 8K draft", {500, 8000, 700, 3000, 1000, 2000}},
        {"B16 200 to 3K draft",
         {200, 3000, 250, 700, 900, 2000, 300, 400, 500, 1500, 200, 800, 1000, 300, 100, 1200}}})
    report(queue, s, true);
  report(queue, {"B1 1K", same(1, 1024)});
  report(queue, {"B1 4K", same(1, 4096)});
  report(queue, {"B1 32K", same(1, 32768)});
  report(queue, {"B1 96K", same(1, 98304)});
  const double decode = report(queue, {"B32 8K", same(32, 8192)});
  report(queue, {"B128 4K", same(128, 4096)});
  report(queue, {"B8 4K", same(8, 4096)});
  std::vector<int> ragged;
  for (int i = 0; i < 32; ++i) ragged.push_back(i % 8 == 0 ? 40000 - 300 * i : 200 + 177 * i);
  report(queue, {"B32 ragged", ragged});
  report(queue, {"B2 32K + 2K", {32768, 2048}});
  const double verify = report(queue, {"B32 8K tree", same(32, 8192), 5, true});
  if (decode > 0 && verify > 0)
    fmt::print(R"({{"case":"5 rows of a tree beside 1 row, B32 8K","ratio":{:.3f}}})"
               "\n",
               verify / decode);
  report(queue, {"B32 8K tree", same(32, 8192), 16, true});
  report(queue, {"B1 32K tree", same(1, 32768), 5, true});
  report(queue, {"B1 32K tree", same(1, 32768), 64, true});
  report(queue, {"B1 32K", same(1, 32768), 1, false, 32, 32, 128});
  report(queue, {"B32 8K", same(32, 8192), 1, false, 32, 32, 128});
  report(queue, {"B1 32K", same(1, 32768), 1, false, 32, 8, 64});
  report(queue, {"B32 8K", same(32, 8192), 1, false, 32, 8, 64});
  report(queue, {"B128 4K", same(128, 4096), 1, false, 32, 8, 64});
  report(queue, {"B32 8K tree", same(32, 8192), 5, true, 32, 8, 64});
  for (const int d : {128, 256}) {  // equal bytes; 256 as in Gemma 3 12B
    const int heads = 4096 / d;
    report(queue, {"B1 32K wide", same(1, 32768), 1, false, heads, heads / 2, d});
    report(queue, {"B32 8K wide", same(32, 8192), 1, false, heads, heads / 2, d});
    for (const int rows : {5, 64})
      report(queue, {"B1 32K wide tree", same(1, 32768), rows, true, heads, heads / 2, d});
    report(queue, {"B32 8K wide tree", same(32, 8192), 5, true, heads, heads / 2, d});
    Setting lists{"B16 2K wide lists of 32K", same(16, 32768), 1, false, heads, heads / 2, d};
    lists.listed = 2048;
    report(queue, lists);
    lists.name = "B16 2K wide derived pages", lists.derived = true;
    report(queue, lists);
  }
  report_lists(queue);
  report_scores(queue, "B16 32K, 5 rows", 16, 32768, 5, 32, 2048);
  report_scores(queue, "B4 96K, 5 rows", 4, 98304, 5, 32, 4096);
  report_scores(queue, "B16 32K, 4 rows", 16, 32768, 4, 32, 2048);
  report_scores(queue, "B16 32K, 9 rows", 16, 32768, 9, 32, 2048);
  return 0;
}
