#include <doctest/doctest.h>

#include <deque>

#include "bench/step_log.h"

using namespace tandem;
using bench::StepLog;

namespace {

/// Gives as many tokens a step as it is told, in launch order.
class Scripted final : public decode::Decoder {
 public:
  std::deque<std::vector<int>> script;  // tokens of each sequence, by launch

  void start(const decode::SamplerSpec&) override {}
  int depth() const override { return 2; }
  int in_flight() const override { return n_; }
  void draw(std::span<const decode::DrawSeq>, const Tensor&) override { ++n_; }
  void step(std::span<const decode::DrawSeq>) override { ++n_; }
  std::vector<std::vector<decode::Drawn>> collect() override {
    std::vector<std::vector<decode::Drawn>> drawn;
    for (const int n : script.front()) drawn.emplace_back(static_cast<size_t>(n));
    script.pop_front();
    --n_;
    return drawn;
  }
  void forget(int) override {}
  double bytes_read() const override { return 0; }

 private:
  int n_ = 0;
};

decode::DrawSeq sequence(int name) { return {.seq = name, .slot = 0, .position = 0, .tokens = {}}; }

}  // namespace

TEST_SUITE("bench/step_log") {
  TEST_CASE("steps and deliveries are those that were collected, the prompts' tokens no step") {
    Scripted decoder;
    decoder.script = {{1, 1}, {3, 1}, {2}};
    int n_told = 0;
    StepLog log(decoder, [&](const StepLog::Step&) { ++n_told; });
    log.start({});
    const std::vector<decode::DrawSeq> both = {sequence(4), sequence(7)};
    log.draw(both, {});
    log.step(both);  // in flight with the draw
    CHECK(log.in_flight() == 2);
    (void)log.collect();
    CHECK(log.steps().empty());
    (void)log.collect();
    log.step(std::span(both).last(1));
    CHECK(log.collect().size() == 1);
    REQUIRE(log.steps().size() == 2);
    CHECK(n_told == 2);
    CHECK(log.steps()[0].seqs == 2);
    CHECK(log.steps()[0].tokens == 4);
    CHECK(log.steps()[1].seqs == 1);
    CHECK(log.steps()[1].tokens == 2);
    const auto& seven = log.deliveries().at(7);
    REQUIRE(seven.size() == 3);
    CHECK(seven[0].tokens + seven[1].tokens + seven[2].tokens == 4);
    CHECK(seven[0].at_s <= seven[1].at_s);
    const double steps_s = log.steps()[0].seconds + log.steps()[1].seconds;
    CHECK(steps_s == doctest::Approx(seven[2].at_s - seven[0].at_s));
    CHECK(log.deliveries().at(4).size() == 2);
    log.start({});
    CHECK(log.steps().empty());
    CHECK(log.deliveries().empty());
  }
}
