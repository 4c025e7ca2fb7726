// Times drawing children and verifying trees on a GPU, in graphs. Not a test; run it by hand.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda_table.h"
#include "kernels/sample/row_split.h"
#include "kernels/tree/traverse_trees.h"
#include "tensor/cuda.h"
#include "tensor/gpu_isa.h"

using namespace tandem;

namespace {

constexpr int kCalls = 16;  // of a graph
constexpr uint64_t kSeed = 7;

struct Memory {
  void* at;
  explicit Memory(size_t bytes) : at(cuda::allocate(0, std::max<size_t>(bytes, 16))) {}
  Memory(const Memory&) = delete;
  ~Memory() { cuda::free_memory(at); }
  template <class T>
  T* as() const {
    return static_cast<T*>(at);
  }
};

template <class T>
void put(cuda::Queue& queue, const Memory& to, const std::vector<T>& from) {
  queue.copy_in(to.at, from.data(), from.size() * sizeof(T));
  queue.wait();
}

template <class T>
std::vector<T> get(cuda::Queue& queue, const Memory& from, size_t n) {
  std::vector<T> host(n);
  queue.copy_out(host.data(), from.at, n * sizeof(T));
  queue.wait();
  return host;
}

/// Workspace of kernels on rows of logits, which all calls share; null where they need none.
void* workspace_of(size_t needed) {
  static void* memory = nullptr;  // a smaller one before it may still be in use, and stays
  static size_t bytes = 0;
  if (needed > bytes) memory = cuda::allocate(0, bytes = needed);
  return memory;
}
void* row_workspace(int vocab, int max_rows) {
  return workspace_of(cuda::row_memory_bytes(cuda::gpu(), vocab, max_rows, 1));
}

/// Median seconds of a call in a graph of calls.
template <class Call>
double time_call(cuda::Queue& queue, const Call& call) {
  const cuda::Graph graph(queue, [&] {
    for (int i = 0; i < kCalls; ++i) call();
  });
  std::vector<double> seconds;
  cuda::Event start(true), stop(true);
  for (int i = 0; i < 43; ++i) {
    start.record(queue);
    graph.launch(queue);
    stop.record(queue);
    stop.wait();
    if (i >= 3) seconds.push_back(static_cast<double>(stop.ms_since(start)) * 1e-3 / kCalls);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Rows of nearly normal logits, and rows not far from them.
struct Rows {
  std::vector<float> target, draft;
  Rows(int n, int vocab) {
    PhiloxStream stream(1);
    const auto normal = [&] {
      double sum = -2;
      for (int i = 0; i < 4; ++i) sum += stream.uniform();
      return static_cast<float>(sum * 1.732);
    };
    for (int64_t i = 0; i < int64_t{n} * vocab; ++i) {
      target.push_back(5 * normal());
      draft.push_back(target.back() + 0.7f * normal());
    }
  }
};

/// At least `n` of them. Those of one vocabulary at a time are kept, since long ones take a while
/// to make.
const Rows& rows_of(int n, int vocab) {
  static std::pair<int, int> size;
  static Rows rows(0, 1);
  if (size.first < n || size.second != vocab) {
    rows = Rows(n, vocab);
    size = {n, vocab};
  }
  return rows;
}

void time_children(cuda::Queue& queue, int n_rows, int vocab, int n_children, float temperature,
                   double top_p) {
  const Rows& rows = rows_of(16, vocab);
  const Memory logits(static_cast<size_t>(n_rows) * static_cast<size_t>(vocab) * 4),
      parents(static_cast<size_t>(n_rows) * sizeof(ParentRow)), names(8), seed(8),
      tokens(static_cast<size_t>(n_rows * n_children) * 4);
  std::vector<ParentRow> parent;
  for (int r = 0; r < n_rows; ++r) {
    parent.push_back({0, r, r * n_children, n_children});
    queue.copy_in(logits.as<float>() + int64_t{r} * vocab,
                  &rows.draft[static_cast<size_t>(r % 16) * static_cast<size_t>(vocab)],
                  static_cast<size_t>(vocab) * 4);
  }
  put(queue, parents, parent);
  put(queue, names, std::vector<int32_t>{3, 100});
  put(queue, seed, std::vector<uint64_t>{kSeed});
  const DrawChildrenParams p{
      .tokens = tokens.as<int32_t>(),
      .logits = logits.as<float>(),
      .parents = parents.as<ParentRow>(),
      .numbers = {seed.as<uint64_t>(), names.as<int32_t>(), names.as<int32_t>() + 1},
      .n_rows = n_rows,
      .vocab = vocab,
      .rule = {1.0f, temperature, 0, top_p, 0.0},
      .workspace = row_workspace(vocab, n_rows)};
  const double seconds = time_call(queue, [&] { cuda_table().draw_children(p, queue.stream()); });
  fmt::print(
      R"({{"op":"draw_children","rows":{},"vocab":{},"children":{},"temperature":{},"top_p":{},"us":{:.2f}}})"
      "\n",
      n_rows, vocab, n_children, temperature, top_p, seconds * 1e6);
  std::fflush(stdout);
}

/// A tree by the nodes of its levels, earlier siblings with more children.
struct Shape {
  const char* name;
  int n_accepted;  // of the trees timed
  std::vector<int32_t> first_child = {}, n_children = {};
  std::vector<int> level_begin = {0};

  Shape(const char* of, int accepted, std::vector<int> widths) : name(of), n_accepted(accepted) {
    int known = 1;
    widths.push_back(0);
    for (size_t level = 0; level + 1 < widths.size(); ++level) {
      int left = widths[level + 1];
      for (int i = 0; i < widths[level]; ++i) {
        const int n = i + 1 < widths[level] ? (left + 1) / 2 : left;
        first_child.push_back(known);
        n_children.push_back(n);
        known += n;
        left -= n;
      }
      level_begin.push_back(static_cast<int>(first_child.size()));
    }
  }
  int size() const { return static_cast<int>(first_child.size()); }
};

/// Trees of which `n_accepted` nodes each are accepted: positions are tried until they do; at
/// temperature 0 the target is made to want these.
class Trees {
 public:
  Trees(cuda::Queue& queue, const Shape& shape, int n_seqs, int vocab,
        const VerifyTreesParams& rules)
      : queue_(queue),
        shape_(shape),
        n_(n_seqs),
        nodes_(shape_.size()),
        vocab_(vocab),
        target_(logit_bytes()),
        draft_(logit_bytes()),
        ints_(static_cast<size_t>(8 * n_ * nodes_ + 8 * n_ + 8) * 4),
        parents_(static_cast<size_t>(n_ * nodes_) * sizeof(ParentRow)) {
    const Rows& rows = rows_of(nodes_, vocab);
    for (int b = 0; b < n_; ++b) {
      queue.copy_in(target_.as<float>() + b * row_floats(), rows.target.data(),
                    logit_bytes() / static_cast<size_t>(n_));
      queue.copy_in(draft_.as<float>() + b * row_floats(), rows.draft.data(),
                    logit_bytes() / static_cast<size_t>(n_));
    }
    queue.wait();
    std::vector<int32_t> begin, first, count, row, sequence;
    for (int b = 0; b <= n_; ++b) begin.push_back(b * nodes_);
    for (int b = 0; b < n_; ++b) {
      sequence.push_back(b);
      for (int i = 0; i < nodes_; ++i) {
        first.push_back(shape_.first_child[static_cast<size_t>(i)]);
        count.push_back(shape_.n_children[static_cast<size_t>(i)]);
        row.push_back(b * nodes_ + i);
      }
    }
    p_ = rules;
    VerifyTreesParams& t = p_;
    t.n_seqs = n_;
    t.vocab = vocab;
    t.node_begin = take(begin);
    t.first_child = take(first);
    t.n_children = take(count);
    t.target_row = t.draft_row = take(row);
    t.target_logits = target_.as<float>();
    t.draft_logits = draft_.as<float>();
    row_workspace(vocab, nodes_);
    t.workspace =
        workspace_of(cuda::verify_memory_bytes(cuda::gpu(), t.accept_by, vocab, n_, n_ * nodes_));
    p_.numbers.sequence = take(sequence);
    p_.numbers.position = position_ = take(std::vector<int32_t>(sequence.size(), 1));
    tokens_ = take(row);
    t.tokens = tokens_;
    t.path = take(row);
    t.n_accepted = take(sequence);
    t.bonus = take(sequence);
    t.n_rounded = take(sequence);
    put(queue_, seed_, std::vector<uint64_t>{kSeed});
    p_.numbers.seed = seed_.as<uint64_t>();
    find_positions();
  }

  void draw() const {
    for (size_t level = 0; level + 2 < shape_.level_begin.size(); ++level) {
      const int begin = shape_.level_begin[level], end = shape_.level_begin[level + 1];
      // Rows of a level lie apart, so each sequence's are a launch here; a draft's lie together.
      for (int b = 0; b < n_; ++b)
        cuda_table().draw_children(
            {.tokens = tokens_,
             .logits = draft_.as<float>() + b * row_floats() + int64_t{begin} * vocab_,
             .parents = parents_.as<ParentRow>() + b * nodes_ + begin,
             .numbers = p_.numbers,
             .n_rows = end - begin,
             .vocab = vocab_,
             .rule = p_.draft,
             .workspace = p_.workspace},
            queue_.stream());
    }
  }
  void verify(float* logprobs = nullptr) const {
    VerifyTreesParams p = p_;
    p.logprobs = logprobs;
    cuda_table().verify_trees(p, queue_.stream());
  }
  int nodes() const { return nodes_; }
  int n_settled() const { return n_settled_; }

 private:
  int64_t row_floats() const { return int64_t{nodes_} * vocab_; }
  size_t logit_bytes() const { return static_cast<size_t>(n_ * row_floats()) * 4; }
  int32_t* take(const std::vector<int32_t>& values) {
    int32_t* to = ints_.as<int32_t>() + taken_;
    taken_ += values.size();
    queue_.copy_in(to, values.data(), values.size() * 4);
    queue_.wait();
    return to;
  }
  void find_positions() {
    std::vector<ParentRow> parents;
    for (int b = 0; b < n_; ++b)
      for (int i = 0; i < nodes_; ++i)
        parents.push_back({b, i, b * nodes_ + shape_.first_child[static_cast<size_t>(i)],
                           shape_.n_children[static_cast<size_t>(i)]});
    put(queue_, parents_, parents);
    if (p_.target.temperature == 0.0f) steer();
    std::vector<int32_t> position(static_cast<size_t>(n_), 1), accepted(position);
    for (int trial = 0; trial < 400 && n_settled_ < n_; ++trial) {
      draw();
      verify();
      queue_.copy_out(accepted.data(), p_.n_accepted, accepted.size() * 4);
      queue_.wait();
      n_settled_ = 0;
      for (size_t b = 0; b < position.size(); ++b) {
        if (accepted[b] == shape_.n_accepted)
          ++n_settled_;
        else
          ++position[b];
      }
      queue_.copy_in(position_, position.data(), position.size() * 4);
      queue_.wait();
    }
  }

  /// The target's best tokens become first children as often as wanted, then a token that is no
  /// child.
  void steer() {
    draw();
    std::vector<int32_t> tokens(static_cast<size_t>(n_ * nodes_));
    queue_.copy_out(tokens.data(), tokens_, tokens.size() * 4);
    queue_.wait();
    const float high = 1000;
    for (int b = 0; b < n_; ++b)
      for (int node = 0, depth = 0; depth <= shape_.n_accepted; ++depth) {
        const auto first = static_cast<size_t>(shape_.first_child[static_cast<size_t>(node)]);
        const int32_t* child = tokens.data() + static_cast<size_t>(b * nodes_) + first;
        const int32_t* end = child + shape_.n_children[static_cast<size_t>(node)];
        int32_t wanted = *child;
        if (depth == shape_.n_accepted)
          for (wanted = 0; std::find(child, end, wanted) != end;) ++wanted;
        queue_.copy_in(target_.as<float>() + b * row_floats() + int64_t{node} * vocab_ + wanted,
                       &high, 4);
        queue_.wait();
        node = static_cast<int>(first);
      }
  }

  cuda::Queue& queue_;
  const Shape& shape_;
  int n_, nodes_, vocab_;
  Memory target_, draft_, ints_, parents_, seed_{sizeof(uint64_t)};
  size_t taken_ = 0;
  VerifyTreesParams p_{};
  int32_t *tokens_ = nullptr, *position_ = nullptr;
  int n_settled_ = 0;
};

struct Rule {
  const char* name;
  AcceptBy by;
  float temperature;
  double top_p;
  bool wants_logprobs;
};

void time_verify(cuda::Queue& queue, const Shape& shape, int n_seqs, int vocab, const Rule& rule) {
  VerifyTreesParams rules{};
  rules.target = {1.0f, rule.temperature, 0, rule.top_p, 0.0};
  rules.draft = {1.0f, rule.temperature, 0, 1.0, 0.0};
  rules.accept_by = rule.by;
  const Trees trees(queue, shape, n_seqs, vocab, rules);
  const Memory logprobs(static_cast<size_t>(n_seqs * trees.nodes()) * 4);
  const double seconds =
      time_call(queue, [&] { trees.verify(rule.wants_logprobs ? logprobs.as<float>() : nullptr); });
  const double draft_seconds = n_seqs == 1 ? time_call(queue, [&] { trees.draw(); }) : 0;
  fmt::print(
      R"({{"op":"verify_trees","rule":"{}","shape":"{}","seqs":{},"nodes":{},"vocab":{},"accepted":{},"seqs_that_accept_so":{},"us":{:.2f},"draw_levels_us":{:.2f}}})"
      "\n",
      rule.name, shape.name, n_seqs, trees.nodes(), vocab, shape.n_accepted, trees.n_settled(),
      seconds * 1e6, draft_seconds * 1e6);
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (cuda::device_count() == 0) {
    fmt::print(stderr, "no GPU: {}\n", cuda::why_none());
    return 77;
  }
  cuda::force_gpu_isa_by_environment();
  cuda::Queue queue(0);
  for (const int vocab : {32000, 128256})
    for (const auto& [temperature, top_p] : {std::pair{0.6f, 1.0}, {0.0f, 1.0}, {0.6f, 0.9}})
      for (const auto& [rows, children] : {std::pair{1, 16}, {16, 1}, {16, 16}, {16, 64}, {64, 4}})
        time_children(queue, rows, vocab, children, temperature, top_p);
  const Shape tree("tree", 6, {1, 8, 20, 24, 22, 18, 14, 10, 7, 4});
  const Shape chain("chain", 4, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  for (const int vocab : {8192, 32000, 128256})
    for (const int n_seqs : {1, 8, 32}) {
      if (n_seqs > 8 && vocab != 32000) continue;
      for (const Rule& rule : {Rule{"residual", AcceptBy::sequoia, 0.6f, 1.0, false},
                               {"residual, logprobs", AcceptBy::sequoia, 0.6f, 1.0, true},
                               {"traversal", AcceptBy::traversal, 0.6f, 1.0, false},
                               {"traversal, logprobs", AcceptBy::traversal, 0.6f, 1.0, true},
                               {"traversal, top-p", AcceptBy::traversal, 0.6f, 0.9, false},
                               {"greedy", AcceptBy::match, 0.0f, 1.0, false},
                               {"greedy, logprobs", AcceptBy::match, 0.0f, 1.0, true},
                               {"match", AcceptBy::match, 0.6f, 1.0, false},
                               {"residual, top-p", AcceptBy::sequoia, 0.6f, 0.9, false}})
        time_verify(queue, tree, n_seqs, vocab, rule);
      for (const Rule& rule : {Rule{"residual, logprobs", AcceptBy::sequoia, 0.6f, 1.0, true},
                               {"block, logprobs", AcceptBy::block, 0.6f, 1.0, true}})
        time_verify(queue, chain, n_seqs, vocab, rule);
    }
  return 0;
}
