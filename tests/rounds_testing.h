#pragma once
#include "generate_runs.h"
#include "spec/rounds.h"
#include "spec/token_tree.h"

/// Pairs of small models that speculate, on either device.
namespace tandem::test {

inline const char* const kPrompts[] = {"The keeper of the lighthouse",
                                       "Wind from the north, and",
                                       "On the third day the lamp was lit before the fog came in.",
                                       "Log",
                                       "Once upon a time there was a",
                                       "It is not true that"};

/// Numbers of children, breadth first.
inline spec::TokenTree tree_of(const std::vector<int>& n_children) {
  return spec::tree_of_children(n_children, "test");
}
inline const std::vector<int> kBushy = {3, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0};

/// Plain text and that of speculation, by the same engines and requests.
struct Pair {
  std::unique_ptr<decode::Engine> target, draft;

  explicit Pair(const std::string& drafts = "tiny-2m", Device device = {}, Setup setup = {}) {
    setup.device = device;
    target = make_engine(tiny_model("tiny-16m"), setup);
    setup.queue = target->queue();
    draft = make_engine(tiny_model(drafts), setup);
  }

  std::vector<decode::Request> requests(size_t n) const {
    std::vector<decode::Request> all;
    for (size_t i = 0; i < n; ++i) all.push_back(request(target->tokenizer()->encode(kPrompts[i])));
    return all;
  }
};

inline decode::GenerateSpec rules(int max_tokens, float temperature = 0, int64_t seed = 0) {
  decode::GenerateSpec spec;
  spec.max_tokens = max_tokens;
  spec.sampler.rule.temperature = temperature;
  spec.sampler.seed = seed;
  return spec;
}

}  // namespace tandem::test
