#include "gpu/device_buffer.h"
#include "gpu/tree_verify_case.h"
#include "kernels/tree/traverse_trees.h"

using namespace tandem;
using namespace tandem::test;

namespace {

class OnGpu {
 public:
  OnGpu(const Trees& t, const VerifyTreesParams& rules, bool wants_logprobs = true)
      : empty_(t),
        node_begin_(t.node_begin),
        tokens_(t.tokens),
        first_child_(t.first_child),
        n_children_(t.n_children),
        target_row_(t.target_row),
        draft_row_(t.draft_row),
        target_(t.target),
        draft_(t.draft),
        seen_(t.seen),
        seen_begin_(t.seen_begin),
        sequence_(t.sequence),
        position_(t.position),
        seed_(std::vector<uint64_t>{kSeed}),
        path_(empty_.path),
        n_accepted_(t.sequence.size() * 4),
        bonus_(t.sequence.size() * 4),
        n_rounded_(t.sequence.size() * 4),
        logprobs_(empty_.logprobs),
        params_(rules) {
    VerifyTreesParams& p = params_;
    p.numbers = {seed_.as<uint64_t>(), sequence_.as<int32_t>(), position_.as<int32_t>(),
                 rules.numbers.stage};
    p.path = path_.as<int32_t>();
    p.n_accepted = n_accepted_.as<int32_t>();
    p.bonus = bonus_.as<int32_t>();
    p.logprobs = wants_logprobs ? logprobs_.as<float>() : nullptr;
    p.n_rounded = n_rounded_.as<int32_t>();
    p.node_begin = node_begin_.as<int32_t>();
    p.tokens = tokens_.as<int32_t>();
    p.first_child = first_child_.as<int32_t>();
    p.n_children = n_children_.as<int32_t>();
    p.target_row = target_row_.as<int32_t>();
    p.target_logits = target_.as<float>();
    if (weighs_draws(rules.accept_by) && rules.n_drawn > 0) {
      p.draft_row = draft_row_.as<int32_t>();
      p.draft_logits = draft_.as<float>();
    }
    p.seen = seen_.as<int32_t>();
    p.seen_begin = seen_begin_.as<int32_t>();
    p.workspace = workspace_of(cuda::verify_memory_bytes(
        cuda::gpu(), p.accept_by, p.vocab, p.n_seqs, static_cast<int>(t.tokens.size())));
  }

  void launch() const {
    cuda_table().verify_trees(params_, queue().stream());
    cuda::launched("verify_trees", queue().stream());
  }
  void set_position(const std::vector<int32_t>& position) const {
    queue().copy_in(position_.raw(), position.data(), position_.bytes());
    queue().copy_in(path_.raw(), empty_.path.data(), path_.bytes());
    queue().copy_in(logprobs_.raw(), empty_.logprobs.data(), logprobs_.bytes());
    queue().wait();
  }
  Verdicts verdicts() const {
    Verdicts v = empty_;
    v.path = path_.vector<int32_t>();
    v.n_accepted = n_accepted_.vector<int32_t>();
    v.bonus = bonus_.vector<int32_t>();
    v.n_rounded = n_rounded_.vector<int32_t>();
    v.logprobs = logprobs_.vector<float>();
    return v;
  }

 private:
  Verdicts empty_;
  DeviceBuffer node_begin_, tokens_, first_child_, n_children_, target_row_, draft_row_, target_,
      draft_, seen_, seen_begin_, sequence_, position_, seed_, path_, n_accepted_, bonus_,
      n_rounded_, logprobs_;
  VerifyTreesParams params_;
};

void require_same(const Verdicts& got, const Verdicts& want) {
  REQUIRE(got.n_accepted == want.n_accepted);
  REQUIRE(got.path == want.path);
  REQUIRE(got.bonus == want.bonus);
  REQUIRE(got.n_rounded == want.n_rounded);
  // The same sums of integers; the two logarithms may differ by a spacing of f64, so that lse,
  // below 1024 here, rounds to a neighbour.
  for (size_t i = 0; i < want.logprobs.size(); ++i)
    REQUIRE(std::abs(got.logprobs[i] - want.logprobs[i]) <= 0x1p-13f);
}

int n_accepted_in(const Verdicts& v) {
  int n = 0;
  for (const int32_t x : v.n_accepted) n += x;
  return n;
}

Verdicts check_trees(const Trees& t, const VerifyTreesParams& p) {
  const OnGpu gpu(t, p);
  gpu.launch();
  Verdicts want = verify_on_cpu(t, p), got = gpu.verdicts();
  if (goes_by_sequences(p.accept_by)) {
    forget_unused(t, want);
    forget_unused(t, got);
  }
  require_same(got, want);
  return want;
}

/// Rules by what children of a node were drawn.
struct Rule {
  AcceptBy by;
  int n_drawn = kAllDrawn;
};
constexpr Rule kRules[] = {{AcceptBy::sequoia},      {AcceptBy::match},
                           {AcceptBy::traversal},    {AcceptBy::sequoia, 1},
                           {AcceptBy::sequoia, 0},   {AcceptBy::traversal, 1},
                           {AcceptBy::traversal, 0}, {AcceptBy::traversal, 2}};

VerifyTreesParams params_of(const Trees& t, const KeepRule& target, const KeepRule& draft,
                            const Rule& rule) {
  VerifyTreesParams p = t.params(target, draft, rule.by);
  p.n_drawn = rule.n_drawn;
  return p;
}

}  // namespace

TEST_SUITE("gpu/kernels/verify_trees") {
  TEST_CASE("paths, bonus tokens and counts are the CPU's") {
    int n_accepted = 0, n_trees = 0;
    for (const Nature nature : kNatures)
      for (const int vocab : {5, 65, 1009, 4097, 32000, 151936}) {
        PhiloxStream stream(static_cast<uint32_t>(vocab));
        Trees rows{.vocab = vocab};
        rows.add_rows(nature, vocab < 10000 ? 20 : 4, stream);
        const int n_seqs = vocab < 10000 ? 9 : 4;
        for (const Settings& s : kSettings) {
          Settings draft = (&s - kSettings) % 2 ? s : Settings{.temperature = 0.8f};
          if (draft.temperature == 0) draft.temperature = 0.8f;
          Trees t = rows;
          for (int b = 0; b < n_seqs; ++b)
            t.add(b == 1 ? 1 : 8 * (b + 1), b % 2 ? 3 : 7, keep_rule(draft), stream);
          for (const Rule& rule : kRules) {
            if (vocab > 10000 && rule.n_drawn != kAllDrawn && &s - kSettings > 3) continue;
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(&s - kSettings);
            CAPTURE(static_cast<int>(rule.by));
            CAPTURE(rule.n_drawn);
            n_accepted +=
                n_accepted_in(check_trees(t, params_of(t, keep_rule(s), keep_rule(draft), rule)));
            n_trees += n_seqs;
          }
        }
      }
    CHECK(n_accepted > n_trees / 2);  // the walks went somewhere
  }

  TEST_CASE("one and two sequences, where clusters are larger") {
    for (const int vocab : {32000, 128256})
      for (const int n_seqs : {1, 2}) {
        PhiloxStream stream(4);
        Trees t{.vocab = vocab};
        t.add_rows(Nature::normal, 4, stream);
        for (int b = 0; b < n_seqs; ++b) t.add(64, 6, keep_rule({.temperature = 0.6f}), stream);
        for (const float temperature : {0.0f, 0.1f, 0.6f, 1.0f, 2.0f})
          for (const double top_p : {1.0, 0.9})
            for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::match, AcceptBy::traversal}) {
              CAPTURE(vocab);
              CAPTURE(temperature);
              for (int round = 0; round < 5; ++round) {
                for (int32_t& at : t.position) ++at;
                check_trees(t, t.params(keep_rule({.temperature = temperature, .top_p = top_p}),
                                        keep_rule({.temperature = 0.6f}), by));
              }
            }
      }
  }

  TEST_CASE("large trees, wide nodes and many sequences") {
    PhiloxStream stream(5);
    Trees t{.vocab = 1009};
    t.add_rows(Nature::normal, 30, stream);
    for (int b = 0; b < 60; ++b) t.add(512, b % 2 ? 64 : 2, keep_rule({}), stream);
    for (const float temperature : {0.0f, 0.6f, 1.0f})
      for (const Rule& rule : kRules) {
        CAPTURE(temperature);
        CAPTURE(static_cast<int>(rule.by));
        CAPTURE(rule.n_drawn);
        check_trees(t, params_of(t, keep_rule({.temperature = temperature}), keep_rule({}), rule));
      }
  }

  TEST_CASE("chains by block, batches of 1, 7 and 40") {
    for (const int n_seqs : {1, 7, 40}) {
      PhiloxStream stream(16);
      Trees t{.vocab = 8192};
      t.add_rows(Nature::normal, 12, stream);
      for (int b = 0; b < n_seqs; ++b)
        t.add(2 + b % 9, 1, keep_rule({.temperature = 0.8f}), stream, true);
      int n_accepted = 0;
      for (const int n_drawn : {0, 1})
        for (const float temperature : {0.0f, 0.6f, 1.0f})
          for (const double top_p : {1.0, 0.9})
            for (int round = 0; round < 3; ++round) {
              CAPTURE(n_seqs);
              CAPTURE(n_drawn);
              CAPTURE(temperature);
              CAPTURE(top_p);
              for (int32_t& at : t.position) ++at;
              n_accepted += n_accepted_in(check_trees(
                  t, params_of(t, keep_rule({.temperature = temperature, .top_p = top_p}),
                               keep_rule({.temperature = 0.8f}), {AcceptBy::block, n_drawn})));
            }
      CHECK(n_accepted > n_seqs);
    }
  }

  TEST_CASE("by floors: trees and chains, one sequence and several, with and without logprobs") {
    for (const int vocab : {7, 1009, 128256})
      for (const AcceptBy by : {AcceptBy::floor, AcceptBy::floor_or_argmax, AcceptBy::typical})
        for (const int n_seqs : {1, 5}) {
          CAPTURE(vocab);
          CAPTURE(static_cast<int>(by));
          CAPTURE(n_seqs);
          PhiloxStream stream(3);
          Trees t{.vocab = vocab};
          t.add_rows(Nature::normal, 12, stream);
          for (int b = 0; b < n_seqs; ++b)
            t.add(b % 2 == 0 ? 61 : 16, b % 2 == 0 ? 4 : 1, keep_rule({.temperature = 0.6f}),
                  stream, true);
          for (const Settings& s : {Settings{.temperature = 0}, Settings{.temperature = 0.8f},
                                    Settings{.temperature = 1.0f, .top_p = 0.9, .penalty = 1.2f}})
            for (const double probability : {0.0, 1e-3, 0.1, 2.0}) {
              CAPTURE(probability);
              VerifyTreesParams p = t.params(keep_rule(s), keep_rule(s), by);
              p.floor = {.probability = probability, .temperature = 0.6f, .delta = 0.3};
              const Verdicts want = check_trees(t, p);
              if (probability == 2.0 && by == AcceptBy::floor) CHECK(n_accepted_in(want) == 0);
              if (probability == 0) CHECK(n_accepted_in(want) > 0);
              const OnGpu bare(t, p, false);
              bare.launch();
              CHECK(bare.verdicts().bonus == want.bonus);
              CHECK(bare.verdicts().n_accepted == want.n_accepted);
            }
        }
  }

  TEST_CASE("nodes that no node leads to are never reached") {
    PhiloxStream stream(17);
    Trees t{.vocab = 3000};
    t.add_rows(Nature::normal, 6, stream);
    for (int b = 0; b < 7; ++b) t.add(9, 1, keep_rule({.temperature = 0.8f}), stream, true);
    for (size_t b = 0; b < 7; ++b)
      t.n_children[static_cast<size_t>(t.node_begin[b]) + b] = 0;  // the chain ends there
    for (const AcceptBy by : {AcceptBy::block, AcceptBy::sequoia})
      check_trees(t, t.params(keep_rule({}), keep_rule({.temperature = 0.8f}), by));
  }

  TEST_CASE("rejections by all tokens, and proposals that run out") {
    // Temperatures so far apart that the proposal has few tokens of weight, and the target others.
    for (const int vocab : {5, 40, 5000}) {
      PhiloxStream stream(6);
      Trees t{.vocab = vocab};
      t.add_rows(Nature::steep, 12, stream);
      for (float& x : t.draft) x *= stream.below(2) ? 1.0f : -1.0f;
      for (int b = 0; b < 40; ++b) t.add(60, 40, keep_rule({.temperature = 0.1f}), stream);
      for (const float temperature : {0.1f, 1.0f, 50.0f})
        for (const float draft_temperature : {0.1f, 2.0f}) {
          CAPTURE(vocab);
          CAPTURE(temperature);
          for (const Rule& rule : kRules)
            check_trees(t, params_of(t, keep_rule({.temperature = temperature}),
                                     keep_rule({.temperature = draft_temperature}), rule));
        }
    }
  }

  TEST_CASE("a draft equal to the target: rejections by rounding alone") {
    PhiloxStream stream(7);
    Trees t{.vocab = 300};
    t.add_rows(Nature::flat, 8, stream);
    t.draft = t.target;
    for (int b = 0; b < 200; ++b) t.add(40, 4, keep_rule({}), stream);
    for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::traversal}) {
      const Verdicts v = check_trees(t, t.params(keep_rule({}), keep_rule({}), by));
      CHECK(n_accepted_in(v) > 200);
    }
  }

  TEST_CASE("cuts of the draft's distribution too") {
    PhiloxStream stream(8);
    Trees t{.vocab = 9000};
    t.add_rows(Nature::normal, 6, stream);
    const KeepRule drawn_by = keep_rule({.top_k = 300, .top_p = 0.97, .penalty = 1.2f});
    for (int b = 0; b < 6; ++b) t.add(30, 5, drawn_by, stream);
    check_trees(t, t.params(keep_rule({.top_k = 400}), drawn_by, AcceptBy::sequoia));
    const Settings drafts[] = {{.top_k = 300, .top_p = 0.97},
                               {.top_k = 3},
                               {.top_p = 0.5},
                               {.temperature = 0.8f, .min_p = 0.1},
                               {.temperature = 0.6f, .top_p = 0.9, .penalty = 1.2f}};
    for (const Settings& draft : drafts)
      for (const Settings& target : {Settings{.top_k = 400}, Settings{}, draft})
        for (const Rule& rule : kRules) {
          CAPTURE(&draft - drafts);
          CAPTURE(static_cast<int>(rule.by));
          CAPTURE(rule.n_drawn);
          check_trees(t, params_of(t, keep_rule(target), keep_rule(draft), rule));
        }
  }

  TEST_CASE("a row without meaning ends the walk") {
    PhiloxStream stream(9);
    Trees t{.vocab = 5000};
    t.add_rows(Nature::flat, 2, stream);
    for (int b = 0; b < 30; ++b) t.add(20, 5, keep_rule({}), stream);
    const auto last = t.target.size() - 1;
    for (std::vector<float>* rows : {&t.target, &t.draft})
      for (const float bad : {kNan, kInf}) {
        const float good = (*rows)[last];
        (*rows)[last] = bad;
        for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::match, AcceptBy::traversal}) {
          const Verdicts v = check_trees(t, t.params(keep_rule({}), keep_rule({}), by));
          const auto n = std::count(v.bonus.begin(), v.bonus.end(), kInvalidToken);
          CHECK((n > 0) == (by != AcceptBy::match || rows == &t.target));
        }
        (*rows)[last] = good;
      }
  }

  TEST_CASE("a recorded launch follows the positions in device memory") {
    PhiloxStream stream(10);
    Trees t{.vocab = 32000};
    t.add_rows(Nature::flat, 4, stream);
    for (int b = 0; b < 5; ++b) t.add(40, 8, keep_rule({}), stream);
    for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::traversal}) {
      const VerifyTreesParams p = t.params(keep_rule({}), keep_rule({}), by);
      const OnGpu gpu(t, p, false);
      const cuda::Graph graph(queue(), [&] { gpu.launch(); });
      for (int round = 0; round < 5; ++round) {
        for (int32_t& at : t.position) at += 1 + round;
        gpu.set_position(t.position);
        graph.launch(queue());
        Verdicts want = verify_on_cpu(t, p), got = gpu.verdicts();
        forget_unused(t, want);
        forget_unused(t, got);
        want.logprobs.assign(want.logprobs.size(), -7);  // not wanted
        require_same(got, want);
      }
    }
  }

  // Few enough for compute-sanitizer.
  TEST_CASE("walks from few blocks") {
    PhiloxStream stream(11);
    Trees t{.vocab = 4500};
    t.add_rows(Nature::normal, 3, stream);
    for (int b = 0; b < 3; ++b) t.add(12, 4, keep_rule({}), stream);
    for (const Settings& s :
         {Settings{.temperature = 0}, Settings{},
          Settings{.temperature = 0.8f, .top_k = 50, .top_p = 0.9, .penalty = 1.3f}})
      for (const Rule& rule : kRules)
        check_trees(t, params_of(t, keep_rule(s), keep_rule({}), rule));
  }

  TEST_CASE("stages decide with other numbers, on both devices the same") {
    PhiloxStream stream(15);
    Trees t{.vocab = 4500};
    t.add_rows(Nature::normal, 3, stream);
    for (int b = 0; b < 8; ++b) t.add(12, 4, keep_rule({}), stream);
    for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::traversal}) {
      std::vector<std::vector<int32_t>> bonus;
      for (const uint32_t stage : {0u, 1u, 255u}) {
        VerifyTreesParams p = t.params(keep_rule({}), keep_rule({}), by);
        p.numbers.stage = stage;
        check_trees(t, p);
        bonus.push_back(verify_on_cpu(t, p).bonus);
      }
      CHECK(bonus[0] != bonus[1]);
      CHECK(bonus[1] != bonus[2]);
    }
  }

  TEST_CASE("too large a vocabulary is refused") {
    Trees t{.vocab = kMaxVerifyVocabCuda + 1};
    t.sequence = {0};
    const auto verify = [&](AcceptBy by) {
      cuda_table().verify_trees(t.params(keep_rule({}), keep_rule({}), by), queue().stream());
    };
    if (cuda::gpu().isa == cuda::GpuIsa::hopper) CHECK_THROWS(verify(AcceptBy::sequoia));
    t.vocab = 400000;
    CHECK_THROWS(verify(AcceptBy::match));
  }
}
