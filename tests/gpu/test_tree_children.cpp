#include "gpu/device_buffer.h"
#include "kernels/sample_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr uint64_t kSeed = uint64_t{1} << 40 | 77;

/// A level of the trees of some sequences: rows of logits and how many children each has. A node
/// has a path of up to nine nodes; their tokens come before the children's.
struct Level {
  int vocab;
  uint32_t stage = 0;
  std::vector<float> logits = {};
  std::vector<ParentRow> parents = {};
  std::vector<int32_t> sequence = {9, 0, 70000}, position = {5, 100000, 1};
  std::vector<int32_t> node_begin = {0, kNodes, 2 * kNodes}, seen_begin = {0, 700, 700, 720};
  static constexpr int kNodes = 1 << 16;  // of a sequence
  int32_t n_tokens = 3 * kNodes + 3;  // the children of a row follow those of the row before, with
                                      // a gap

  void add(const std::vector<float>& row, int n_children) {
    logits.insert(logits.end(), row.begin(), row.end());
    const auto r = static_cast<int32_t>(parents.size());
    parents.push_back({r % 3, r * 7919 % (1 << 16), n_tokens, std::min(n_children, vocab)});
    n_tokens += parents.back().n_children + 1;
  }
  /// Of the trees; -2 for children to be drawn. One token in 50 is that of a row without meaning.
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> tokens = random_ids(n_tokens, 1);
    for (size_t i = 0; i < tokens.size(); i += 50) tokens[i] = kInvalidToken;
    std::fill(tokens.begin() + 3 * kNodes, tokens.end(), -2);
    return tokens;
  }
  std::vector<int32_t> seen() const { return random_ids(seen_begin.back(), 2); }
  std::vector<int32_t> parent() const {
    std::vector<int32_t> parent(size_t{3} * kNodes);
    for (int32_t i = 0; i < 3 * kNodes; ++i)
      parent[static_cast<size_t>(i)] = i % kNodes == 0 ? -1 : i % kNodes / 4;
    return parent;
  }

 private:
  std::vector<int32_t> random_ids(int32_t n, uint32_t seed) const {
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < static_cast<uint32_t>(n); ++i)
      ids.push_back(static_cast<int32_t>((i + seed) * 2654435761u % static_cast<uint32_t>(vocab)));
    return ids;
  }
};

using Tokens = std::vector<int32_t>;

Tokens draw_on_cpu(const Level& level, const Settings& settings) {
  Tokens tokens = level.tokens();
  const Tokens seen = level.seen(), parent = level.parent();
  const auto workspace = aligned_bytes(draw_children_workspace_bytes(level.vocab));
  const auto n_rows = static_cast<int>(level.parents.size());
  cpu_table().draw_children(
      {.tokens = tokens.data(),
       .logits = level.logits.data(),
       .parents = level.parents.data(),
       .numbers = {&kSeed, level.sequence.data(), level.position.data(), level.stage},
       .n_rows = n_rows,
       .vocab = level.vocab,
       .rule = keep_rule(settings),
       .seen = seen.data(),
       .seen_begin = level.seen_begin.data(),
       .parent = parent.data(),
       .node_begin = level.node_begin.data(),
       .workspace = workspace.get()},
      {0, n_rows});
  return tokens;
}

/// The level in device memory. Tokens that no row writes stay as they are.
class OnGpu {
 public:
  OnGpu(const Level& level, const Settings& settings, size_t shift = 0)
      : logits_(level.logits, shift),
        parents_(level.parents),
        sequence_(level.sequence),
        position_(level.position),
        seed_(std::vector<uint64_t>{kSeed}),
        seen_(level.seen()),
        seen_begin_(level.seen_begin),
        parent_(level.parent()),
        node_begin_(level.node_begin),
        tokens_(level.tokens()),
        params_{
            .tokens = tokens_.as<int32_t>(),
            .logits = logits_.as<float>(),
            .parents = parents_.as<ParentRow>(),
            .numbers = {seed_.as<uint64_t>(), sequence_.as<int32_t>(), position_.as<int32_t>(),
                        level.stage},
            .n_rows = static_cast<int>(level.parents.size()),
            .vocab = level.vocab,
            .rule = keep_rule(settings),
            .seen = seen_.as<int32_t>(),
            .seen_begin = seen_begin_.as<int32_t>(),
            .parent = parent_.as<int32_t>(),
            .node_begin = node_begin_.as<int32_t>(),
            .workspace = row_workspace(level.vocab, static_cast<int>(level.parents.size()), 1)} {}

  void launch() const {
    cuda_table().draw_children(params_, queue().stream());
    cuda::launched("draw_children", queue().stream());
  }
  void set_position(const std::vector<int32_t>& position) const {
    queue().copy_in(position_.raw(), position.data(), position_.bytes());
    queue().wait();
  }
  Tokens tokens() const { return tokens_.vector<int32_t>(); }

 private:
  DeviceBuffer logits_, parents_, sequence_, position_, seed_, seen_, seen_begin_, parent_,
      node_begin_, tokens_;
  DrawChildrenParams params_;
};

Tokens draw_on_gpu(const Level& level, const Settings& settings, size_t shift = 0) {
  const OnGpu gpu(level, settings, shift);
  gpu.launch();
  return gpu.tokens();
}

/// Those without cuts and penalty, and those of sampling.
std::vector<Settings> all_settings() {
  std::vector<Settings> all(std::begin(kSettings), std::end(kSettings));
  for (const float temperature : {0.1f, 0.6f, 2.0f}) all.push_back({.temperature = temperature});
  all.push_back({.temperature = 0.6f, .penalty = 1.3f});
  all.push_back({.temperature = 2, .top_p = 0.99});
  all.push_back({.temperature = 0.1f, .top_k = 700});
  return all;
}
const std::vector<Settings> kRules = all_settings();

}  // namespace

TEST_SUITE("gpu/kernels/draw_children") {
  TEST_CASE("the tokens that the CPU draws") {
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 5, 63, 64, 65, 1009, 4096, 4097, 9000, 32000, 128256, 151936})
        for (const int n_rows : {2, 9, 18}) {
          if (n_rows == 18 && vocab > 100000) continue;
          Level level{.vocab = vocab};
          PhiloxStream stream(8);
          std::vector<std::vector<float>> rows;
          for (int r = 0; r < std::min(n_rows, vocab > 10000 ? 2 : 9); ++r)
            rows.push_back(random_logits(nature, vocab, stream.next()));
          constexpr int kWanted[] = {16, 1, 32, 5, 0, 33, 128, 300, 1009};
          for (int r = 0; r < n_rows; ++r)
            level.add(rows[static_cast<size_t>(r) % rows.size()],
                      kWanted[(r + (n_rows == 2 ? vocab : 0)) % 9]);
          for (const Settings& s : kRules) {
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(n_rows);
            CAPTURE(&s - kRules.data());
            REQUIRE(draw_on_gpu(level, s, n_rows == 9 ? 4 : 0) == draw_on_cpu(level, s));
          }
        }
  }

  TEST_CASE("many rows") {
    Level level{.vocab = 1009};
    for (uint32_t r = 0; r < 5000; ++r)
      level.add(random_logits(kNatures[r % 5], level.vocab, r), static_cast<int>(r % 20));
    for (const Settings& s : kRules) REQUIRE(draw_on_gpu(level, s) == draw_on_cpu(level, s));
  }

  TEST_CASE("the rarest leading bits: many draws of few tokens") {
    const std::vector<float> flat(64, 0.5f);
    for (int32_t launch = 0; launch < 4; ++launch) {  // other positions, other random numbers
      Level level{.vocab = 64, .position = {5 + launch, 100000 + launch, 1 + launch}};
      for (int r = 0; r < 15000; ++r) level.add(flat, 8);
      for (const Settings& s : {Settings{}, Settings{.top_p = 0.1}})
        REQUIRE(draw_on_gpu(level, s) == draw_on_cpu(level, s));
    }
  }

  TEST_CASE("rows with fewer tokens of weight than children, or with these in few threads") {
    constexpr int kVocab = 40000;
    for (const int n_finite : {1, 3, 15, 40}) {
      Level level{.vocab = kVocab};
      // Apart, side by side, and a thread's.
      for (const int step : {997, 1, 2048}) {
        std::vector<float> masked(kVocab, -kInf), low(kVocab, -1000.0f);
        for (int i = 0; i < n_finite; ++i)
          masked[static_cast<size_t>((i * step + 3) % kVocab)] =
              low[static_cast<size_t>((i * step + 3) % kVocab)] = static_cast<float>(i % 4);
        level.add(masked, 16);
        level.add(low, 40);
      }
      for (const Settings& s : kRules) {
        CAPTURE(n_finite);
        CAPTURE(&s - kRules.data());
        REQUIRE(draw_on_gpu(level, s) == draw_on_cpu(level, s));
      }
    }
  }

  TEST_CASE("a heavy cluster of ids") {
    Level level{.vocab = 151936};
    std::vector<float> row(static_cast<size_t>(level.vocab));
    PhiloxStream stream(3);
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = random_float(stream, 1.0f) + (i < 3000 ? 12.0f : 0.0f);
    for (const int wanted : {16, 64, 256, 512}) level.add(row, wanted);
    for (const Settings& s : kRules) REQUIRE(draw_on_gpu(level, s) == draw_on_cpu(level, s));
  }

  TEST_CASE("a meaningless row gives no children, and its neighbours theirs") {
    for (const float bad : {kNan, kInf, -kNan})
      for (const int vocab : {100, 20000})
        for (const Settings& s : kRules) {
          Level level{.vocab = vocab};
          std::vector<float> row(static_cast<size_t>(vocab), 0.5f);
          level.add(row, 3);
          row[row.size() / 2] = bad;
          level.add(row, 3);
          level.add(std::vector<float>(row.size(), -kInf), 20);
          const Tokens got = draw_on_gpu(level, s);
          REQUIRE(got == draw_on_cpu(level, s));
          CHECK(got[static_cast<size_t>(level.parents[1].first_child)] == kInvalidToken);
          CHECK(got[static_cast<size_t>(level.parents[2].first_child)] == kInvalidToken);
        }
  }

  TEST_CASE("a recorded launch follows the positions in device memory") {
    Level level{.vocab = 32000};
    for (uint32_t r = 0; r < 6; ++r) level.add(random_logits(Nature::normal, level.vocab, r), 12);
    const Settings rule{.temperature = 0.6f, .top_p = 0.8, .penalty = 1.1f};
    const OnGpu gpu(level, rule);
    const cuda::Graph graph(queue(), [&] { gpu.launch(); });
    Tokens last;
    for (int round = 0; round < 4; ++round) {
      for (int32_t& at : level.position) at += 1 + round;
      gpu.set_position(level.position);
      graph.launch(queue());
      const Tokens got = gpu.tokens();
      REQUIRE(got == draw_on_cpu(level, rule));
      CHECK(got != last);
      last = got;
    }
  }

  // Few enough for compute-sanitizer.
  TEST_CASE("children from few blocks") {
    Level level{.vocab = 4500};
    level.add(random_logits(Nature::normal, level.vocab, 1), 16);
    level.add(random_logits(Nature::masked, level.vocab, 2), 40);
    std::vector<float> one(4500, -kInf);
    one[4499] = 0;
    level.add(one, 3);
    for (const Settings& s :
         {Settings{.temperature = 0}, Settings{.temperature = 0.6f},
          Settings{.temperature = 0.6f, .top_k = 30, .top_p = 0.9, .penalty = 1.2f},
          Settings{.temperature = 0, .penalty = 1.2f}})
      CHECK(draw_on_gpu(level, s) == draw_on_cpu(level, s));
  }

  TEST_CASE("too large a vocabulary is refused") {
    DrawChildrenParams p{};
    p.n_rows = 1;
    p.vocab = kMaxVocabCuda + 1;
    CHECK_THROWS(cuda_table().draw_children(p, queue().stream()));
  }

  TEST_CASE("stages draw other children, on both devices the same") {
    std::vector<Tokens> drawn;
    for (const uint32_t stage : {0u, 1u, 255u}) {
      Level level{.vocab = 4097, .stage = stage};
      PhiloxStream stream(12);
      for (int r = 0; r < 6; ++r) level.add(random_logits(Nature::flat, 4097, stream.next()), 5);
      drawn.push_back(draw_on_cpu(level, {}));
      CHECK(draw_on_gpu(level, {}) == drawn.back());
    }
    CHECK(drawn[0] != drawn[1]);
    CHECK(drawn[1] != drawn[2]);
  }
}
