#include <doctest/doctest.h>

#include "eval/eval_testing.h"
#include "eval/panel.h"
#include "eval/perplexity.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;

namespace {

constexpr int kLength = 900;

/// A hybrid or lsh, its keys in host memory or where the model runs.
NamedPolicy far_apart(const std::string& kind, bool hosted) {
  NamedPolicy policy = sparse(kind);
  policy.cache.recent = {64};
  if (!hosted) return policy;
  policy.cache.place = tandem::recipe::CachePlace::host;
  policy.cache.attend = tandem::recipe::Attend::cpu;
  policy.cache.index = tandem::recipe::IndexPlace::host;
  return policy;
}

std::vector<NamedPolicy> policies(bool hosted) {
  return {full(), far_apart("hybrid", hosted), streaming(4, 64), far_apart("lsh", hosted)};
}

/// The engines that these policies need, and their panel.
struct Engines {
  std::vector<std::unique_ptr<Engine>> list;
  std::vector<Panel::Member> members;

  template <class SpecOf>
  Engines(const std::vector<NamedPolicy>& policies, const SpecOf& spec_of) {
    for (const std::vector<int>& part : divide_among_engines(policies)) {
      std::vector<NamedPolicy> own;
      for (const int i : part) own.push_back(policies[static_cast<size_t>(i)]);
      list.push_back(make_engine("tiny-2m", spec_of(own)));
      members.push_back({list.back().get(), part});
    }
  }
  Panel panel() const { return Panel(members); }
};

}  // namespace

TEST_SUITE("eval/panel") {
  TEST_CASE("keys in host memory have an engine for each policy, all others share the first") {
    CHECK(divide_among_engines(policies(false)) == std::vector<std::vector<int>>{{0, 1, 2, 3}});
    CHECK(divide_among_engines(policies(true)) == std::vector<std::vector<int>>{{0, 2}, {1}, {3}});
  }

  TEST_CASE("several engines judge cases as one engine does that reads by all policies") {
    const auto spec_of = [](const auto& p) {
      return case_engine_spec(p, DType::f32, 512, kLength, 2);
    };
    const Engines one(policies(false), spec_of), several(policies(true), spec_of);
    REQUIRE(several.list.size() == 3);
    const CaseGenerator make(tokenizer(), {}, 1);
    std::vector<Case> cases;
    for (const Task task : {Task::needle1, Task::kv}) cases.push_back(make.make(task, kLength, 0));
    const CaseSpec everything{{Protocol::dense, Protocol::sparse}, {Score::forced}};
    const auto a = run_cases(one.panel(), cases, everything),
               b = run_cases(several.panel(), cases, everything);
    REQUIRE(a.size() == b.size());
    int n_read = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      REQUIRE(a[i].size() == 4 * 2);
      REQUIRE(b[i].size() == a[i].size());
      for (const Outcome& x : a[i]) {
        const auto y = std::ranges::find_if(b[i], [&](const Outcome& o) {
          return o.policy == x.policy && o.protocol == x.protocol;
        });
        REQUIRE(y != b[i].end());
        CHECK(x.correct == y->correct);
        REQUIRE(x.reads.has_value() == y->reads.has_value());
        if (!x.reads) continue;
        ++n_read;
        CHECK(x.reads->selected == doctest::Approx(y->reads->selected));
        CHECK(x.reads->fixed == doctest::Approx(y->reads->fixed));
      }
    }
    CHECK(n_read > 0);
  }

  TEST_CASE("several engines measure text as one engine does that reads by all policies") {
    const auto spec_of = [](const auto& p) { return text_engine_spec(p, DType::f32, 800, 300); };
    const Engines one(policies(false), spec_of), several(policies(true), spec_of);
    Case text = CaseGenerator(tokenizer(), {}, 1).make(Task::needle1, kLength, 0);
    text.haystack.resize(800);
    const std::vector<Window> windows = {{text.haystack, 0}};
    const auto a = measure_text(one.panel(), windows, 300, {}),
               b = measure_text(several.panel(), windows, 300, {});
    REQUIRE(a.size() == 4);
    REQUIRE(b.size() == 4);
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(a[i].n_tokens == b[i].n_tokens);
      CHECK(a[i].nll.mean == doctest::Approx(b[i].nll.mean).epsilon(1e-5));
      if (i > 0) CHECK(a[i].kl.mean == doctest::Approx(b[i].kl.mean).epsilon(1e-3));
    }
    CHECK(b[1].kl.mean > 0);
  }
}
