#include "kv/list_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/first_error.h"
#include "base/idle.h"
#include "base/parallel.h"

namespace tandem::kv {
namespace {

constexpr const char* kScratch = "workspace/key_lists";

// Some 20 us of one core's share of the DRAM: what the others may have to wait for at the end. A
// block's first rows are waited for, which takes about a hundredth of that.
constexpr int kBlockKeys = 384;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// States of the blocks of a group's lists.
size_t states_bytes(const Geometry& g) {
  const size_t blocks = static_cast<size_t>(g.group()) * kMostListBlocks;
  return aligned(blocks * static_cast<size_t>(g.head_dim) * sizeof(float)) +
         aligned(blocks * sizeof(float));
}

size_t desk_bytes(const Geometry& g, size_t scratch_bytes) {
  return aligned(scratch_bytes) + states_bytes(g);
}

}  // namespace

int n_list_blocks(int n) {
  return std::clamp((n + kBlockKeys - 1) / kBlockKeys, 1, kMostListBlocks);
}

void cut_block(std::span<const KeySegment> list, int n_blocks, int i,
               std::vector<KeySegment>& block) {
  int64_t n = 0;
  for (const KeySegment& s : list) n += s.n;
  // Whole groups of a kernel's rows.
  constexpr int64_t kGroup = 16;
  const int64_t step = (n + kGroup * n_blocks - 1) / (kGroup * n_blocks) * kGroup;
  const auto begin = static_cast<int>(std::min(n, step * i)),
             end = static_cast<int>(std::min(n, step * (i + 1)));
  block.clear();
  int first = 0;  // of the segment, in the list
  for (const KeySegment& s : list) {
    const int from = std::max(begin - first, 0), to = std::min(end - first, s.n);
    if (from < to)
      block.push_back({s.ids + from, to - from, s.bias == nullptr ? nullptr : s.bias + from,
                       s.norms});  // by token
    first += s.n;
  }
}

void join_states(float* o, float* lse, const float* part_o, const float* part_lse, int n, int d) {
  const float most = *std::max_element(part_lse, part_lse + n);
  std::fill(o, o + d, 0.0f);
  *lse = most;
  if (most == kEmpty) return;
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::exp(static_cast<double>(part_lse[i]) - most);
  for (int i = 0; i < n; ++i) {
    if (part_lse[i] == kEmpty) continue;
    const auto weight = static_cast<float>(std::exp(static_cast<double>(part_lse[i]) - most) / sum);
    const float* row = part_o + static_cast<int64_t>(i) * d;
    for (int c = 0; c < d; ++c) o[c] += weight * row[c];
  }
  *lse = static_cast<float>(most + std::log(sum));
}

/// Query heads of a row under one KV head.
struct ListAttention::Task {
  int b, row, kv_head, first_head, n_heads;
};

/// Of the list of one of a task's heads.
struct ListAttention::Block {
  int head, n_blocks, i;
};

/// What a thread has for the task in hand. Others only take blocks, and write their states.
struct ListAttention::Desk {
  Desk(const Geometry& g, std::byte* memory, size_t scratch_bytes)
      : scratch(memory), lists(static_cast<size_t>(g.group())) {
    const size_t n = static_cast<size_t>(g.group()) * kMostListBlocks;
    o = reinterpret_cast<float*>(memory + aligned(scratch_bytes));
    lse = o + aligned(n * static_cast<size_t>(g.head_dim) * sizeof(float)) / sizeof(float);
    blocks.reserve(n);
  }
  std::span<KeyList> chosen() { return std::span(lists).first(static_cast<size_t>(task.n_heads)); }

  std::byte* scratch;  // of the selector
  float* o;            // [group, kMostListBlocks, d]
  float* lse;          // [group, kMostListBlocks]
  std::vector<KeyList> lists;
  std::vector<KeySegment> cut;  // of the block in hand, another desk's too
  KeyUsage usage;
  Task task{};
  KeyQuery query{.keys = KeyRows({}, nullptr, 0)};
  std::vector<Block> blocks;
  SharedBlocks shared;
};

/// The threads of one call.
class ListAttention::Team {
 public:
  Team(ListAttention& all, const Call& call)
      : all_(all),
        call_(call),
        tasks_(all.tasks_of(call)),
        unfinished_(static_cast<int>(tasks_.size())) {}

  /// A thread's part: its own tasks, and blocks of others' while it has none.
  void work(size_t thread) {
    Desk& mine = *all_.desks_[thread];
    for (int i = next_.fetch_add(1); i < static_cast<int>(tasks_.size()); i = next_.fetch_add(1)) {
      error_.run([&] { all_.make_lists(call_, tasks_[static_cast<size_t>(i)], mine); });
      if (error_.failed()) mine.blocks.clear();
      mine.shared.offer(static_cast<int>(mine.blocks.size()));
      while (take_from(mine, mine)) continue;
      help_until([&] { return mine.shared.all_done(); }, thread);
      error_.run([&] { all_.finish(call_, mine); });
      unfinished_.fetch_sub(1);
    }
    help_until([&] { return unfinished_.load() == 0; }, thread);
  }
  void rethrow() const { error_.rethrow(); }

 private:
  bool take_from(Desk& owner, Desk& mine) {
    const int block = owner.shared.take();
    if (block < 0) return false;
    error_.run([&] { all_.attend_block(call_, owner, block, mine.cut); });
    owner.shared.finish();
    return true;
  }
  template <class Condition>
  void help_until(const Condition& reached, size_t thread) {
    const size_t n = all_.desks_.size();
    Idle idle;
    while (!reached()) {
      bool helped = false;
      for (size_t k = 1; k < n && !helped; ++k)
        helped = take_from(*all_.desks_[(thread + k) % n], *all_.desks_[thread]);
      if (helped)
        idle.reset();
      else
        idle.wait();
    }
  }

  ListAttention& all_;
  const Call& call_;
  const std::vector<Task> tasks_;
  std::atomic<int> next_{0};
  std::atomic<int> unfinished_;
  FirstError error_;
};

void ListAttention::plan(const Spec& spec, MemoryPlan& plan) {
  plan.add(kScratch,
           desk_bytes(spec.geometry, spec.scratch_bytes) * static_cast<size_t>(max_threads()));
  ReadKeys::plan(spec.drafted, plan);
}

ListAttention::ListAttention(const Spec& spec, Arena& arena)
    : geometry_(spec.geometry), read_(spec.drafted, arena) {
  auto* const memory = static_cast<std::byte*>(arena.take(kScratch));
  const size_t bytes = desk_bytes(geometry_, spec.scratch_bytes);
  for (size_t i = 0; i < static_cast<size_t>(max_threads()); ++i)
    desks_.push_back(std::make_unique<Desk>(geometry_, memory + i * bytes, spec.scratch_bytes));
}

ListAttention::~ListAttention() = default;

void ListAttention::run(const Call& call, KeyUsage& usage) {
  if (call.step.drafted && call.step.n_rows > call.step.n_seqs) read_.clear(call.step.n_seqs);
  Team team(*this, call);
  // Whichever desks get no thread in time find all tasks taken.
  parallel_for(static_cast<int>(desks_.size()), static_cast<int>(desks_.size()),
               [&](int desk) { team.work(static_cast<size_t>(desk)); });
  for (const auto& desk : desks_) {
    usage = usage.plus(desk->usage);
    desk->usage = {};
  }
  team.rethrow();
}

ListedCopies ListAttention::keys_of(const Call& call) {
  const ListedCopies copies = call.selector.copies(call.layer);
  return copies.store != nullptr ? copies : ListedCopies{&call.store};
}

std::vector<ListAttention::Task> ListAttention::tasks_of(const Call& call) const {
  const Step& step = call.step;
  const int group = geometry_.group();
  // A group stays together unless that leaves threads idle.
  int n_heads = group;
  while (!call.selector.takes_groups() && n_heads > 1 &&
         step.n_rows * geometry_.n_kv_heads * (group / n_heads) < static_cast<int>(desks_.size()))
    n_heads = (n_heads + 1) / 2;
  std::vector<Task> tasks;
  for (int b = 0; b < step.n_seqs; ++b)
    for (int kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head)
      for (int i = 0; i < step.rows_of(b); ++i)
        for (int first = 0; first < group; first += n_heads)
          tasks.push_back({.b = b,
                           .row = step.row_begin[static_cast<size_t>(b)] + i,
                           .kv_head = kv_head,
                           .first_head = kv_head * group + first,
                           .n_heads = std::min(n_heads, group - first)});
  return tasks;
}

void ListAttention::make_lists(const Call& call, const Task& t, Desk& desk) const {
  const size_t first = static_cast<size_t>(t.row) * static_cast<size_t>(geometry_.n_heads) +
                       static_cast<size_t>(t.first_head);
  const auto b = static_cast<size_t>(t.b);
  const ListedCopies read = keys_of(call);
  desk.task = t;
  desk.query = {
      .layer = call.layer,
      .slot = call.step.slot[b],
      .row = t.row,
      .position = call.step.pos[static_cast<size_t>(t.row)],
      .kv_head = t.kv_head,
      .keys = read.store->keys(call.layer, read.first_slot + call.step.slot[b], t.kv_head),
      .first_head = t.first_head,
      .n_heads = t.n_heads,
      .q = static_cast<const char*>(call.q.raw()) +
           first * static_cast<size_t>(geometry_.head_dim) * dtype_bytes(geometry_.dtype)};
  for (KeyList& list : desk.chosen()) {
    list.segments.clear();
    list.n_static = 0;
    list.n_before = 0;
    list.index_bytes = 0;
    list.tail = {};
    list.error = -1;
  }
  call.selector.select_keys(desk.query, desk.scratch, desk.chosen());
  desk.blocks.clear();
  for (int head = 0; head < t.n_heads; ++head) {
    const int n = n_list_blocks(desk.lists[static_cast<size_t>(head)].n_keys());
    for (int i = 0; i < n; ++i) desk.blocks.push_back({head, n, i});
  }
}

void ListAttention::attend_block(const Call& call, Desk& owner, int i,
                                 std::vector<KeySegment>& cut) const {
  const Block& block = owner.blocks[static_cast<size_t>(i)];
  const auto head = static_cast<size_t>(block.head), d = static_cast<size_t>(geometry_.head_dim);
  const KeyList& list = owner.lists[head];
  const std::span<const float> log_u = call.selector.log_u();
  const size_t state = head * kMostListBlocks + static_cast<size_t>(block.i);
  const ListedCopies read = keys_of(call);
  cut_block(list.segments, block.n_blocks, block.i, cut);
  ops::attend_list(
      {.o = owner.o + state * d,
       .lse = owner.lse + state,
       .q = static_cast<const char*>(owner.query.q) + head * d * dtype_bytes(geometry_.dtype),
       .k_pool = read.store->k(call.layer).raw(),
       .v_pool = read.store->v(call.layer).raw(),
       .pages = read.store->pages(read.first_slot + owner.query.slot).data(),
       .segments = cut.data(),
       .n_segments = static_cast<int>(cut.size()),
       .n_kv_heads = geometry_.n_kv_heads,
       .kv_head = owner.task.kv_head,
       .d = geometry_.head_dim,
       .dtype = geometry_.dtype,
       .scale = geometry_.scale(call.layer).f32(),
       .log_u = log_u.data(),
       .log_u_intervals = log_u.empty() ? 0 : static_cast<int>(log_u.size()) - 1,
       .q_norm = list.q_norm,
       .q_center = list.q_center,
       .scales = read.store->scales(call.layer)});
}

void ListAttention::finish(const Call& call, Desk& desk) {
  const Task& t = desk.task;
  const auto d = static_cast<size_t>(geometry_.head_dim);
  for (int head = 0; head < t.n_heads; ++head) {
    const auto i = static_cast<size_t>(head), state = i * kMostListBlocks;
    const KeyList& list = desk.lists[i];
    const size_t at = static_cast<size_t>(t.row) * static_cast<size_t>(geometry_.n_heads) +
                      static_cast<size_t>(t.first_head + head);
    float *const o = call.o + at * d, *const lse = call.lse + at;
    join_states(o, lse, desk.o + state * d, desk.lse + state, n_list_blocks(list.n_keys()),
                geometry_.head_dim);
    if (!list.tail.rows.empty())
      ops::add_means({.o = o,
                      .lse = lse,
                      .masses = list.tail.masses,
                      .rows = list.tail.rows.data(),
                      .n_rows = static_cast<int>(list.tail.rows.size()),
                      .d = geometry_.head_dim,
                      .origin = list.tail.origin});
    if (call.on_list != nullptr) (*call.on_list)(t.row, t.first_head + head, list);
    count(call, list, desk);
  }
}

void ListAttention::count(const Call& call, const KeyList& list, Desk& desk) {
  KeyUsage& usage = desk.usage;
  const Task& t = desk.task;
  const int n = list.n_keys();
  usage.selected += n - list.n_static;
  usage.fixed += list.n_static;
  usage.index_bytes += list.index_bytes;
  if (list.error >= 0) {
    usage.error += list.error;
    usage.with_error += 1;
  }
  // Other rows of a tree may read the same keys.
  const bool shares = call.step.drafted && call.step.rows_of(t.b) > 1;
  const int n_read = shares ? read_.note(t.b, t.kv_head, list) : n - list.n_before;
  usage.key_bytes += 2.0 * n_read * static_cast<double>(call.store.row_bytes());
}

}  // namespace tandem::kv
