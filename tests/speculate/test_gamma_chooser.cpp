#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "speculate/draft/gamma_chooser.h"
#include "speculate/plan/gamma_choice.h"
#include "speculate/plan_models.h"

using namespace tandem;
using namespace tandem::speculate;

namespace {

/// A machine and a text: what rounds take, and how often tokens are accepted.
struct World {
  double draft = 0.2;  // of a plain step
  double row = 0.02;   // of a plain step, for one more row
  double host = 0.01;
  double alpha = 0.8;

  StepCost times(int most) const {
    std::vector<double> verify;
    for (int gamma = 1; gamma <= most; ++gamma) verify.push_back(1 + row * gamma);
    return testing::chain_steps(1, draft, verify, host);
  }
};

class Run {
 public:
  explicit Run(int most, int batch) : chooser(gammas_up_to(most)), most_(most), batch_(batch) {}

  /// Rounds, and how often each gamma was chosen.
  std::vector<int> rounds(const World& world, int n) {
    std::vector<int> chosen(static_cast<size_t>(most_) + 1);
    std::vector<int> seqs(static_cast<size_t>(batch_));
    std::iota(seqs.begin(), seqs.end(), 0);
    const StepCost times = world.times(most_);
    for (int i = 0; i < n; ++i) {
      const int gamma = chooser.choose(seqs);
      ++chosen[static_cast<size_t>(gamma)];
      std::vector<GammaChooser::Tested> tested;
      for (const int seq : seqs) {
        int accepted = 0;
        while (accepted < gamma && draw_.uniform() < world.alpha) ++accepted;
        tested.push_back({seq, std::min(accepted + 1, gamma), accepted});
      }
      double seconds =
          at_gamma(times, gamma, world.alpha).round_ms * (0.95 + 0.1 * draw_.uniform());
      if (!seen_[gamma]++) seconds *= 30;        // a graph is recorded
      if (draw_.uniform() < 0.02) seconds *= 5;  // something else ran
      spent += seconds;
      chooser.observe(gamma, seqs.size(), seconds, tested);
    }
    return chosen;
  }
  void set_batch(int batch) { batch_ = batch; }

  GammaChooser chooser;
  double spent = 0;

 private:
  int most_, batch_;
  std::map<int, int> seen_;
  PhiloxStream draw_{7};
};

/// The speed-up of what was chosen over plain steps, from the world's own times.
double speedup(const World& world, const std::vector<int>& chosen) {
  const StepCost times = world.times(static_cast<int>(chosen.size()) - 1);
  double tokens = 0, seconds = 0;
  for (int gamma = 0; gamma < static_cast<int>(chosen.size()); ++gamma) {
    const GammaChoice c = at_gamma(times, gamma, world.alpha);
    tokens += chosen[static_cast<size_t>(gamma)] * c.tokens;
    seconds += chosen[static_cast<size_t>(gamma)] * c.round_ms;
  }
  return tokens / seconds;
}

}  // namespace

TEST_SUITE("speculate/gamma_chooser") {
  TEST_CASE("numbers in steps that grow") {
    CHECK(gammas_up_to(1) == std::vector<int>{1});
    CHECK(gammas_up_to(16) == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 16});
    CHECK(gammas_up_to(7) == std::vector<int>{1, 2, 3, 4, 6, 7});
    CHECK(GammaChooser({2, 5}).gammas() == std::vector<int>{0, 2, 5});
  }

  TEST_CASE("rounds are within 3 % of the best number's, after a few that learn") {
    for (const double draft : {0.02, 0.1, 0.3})
      for (const double alpha : {0.3, 0.6, 0.85, 0.97})
        for (const int batch : {1, 4, 64}) {
          CAPTURE(draft);
          CAPTURE(alpha);
          CAPTURE(batch);
          const World world{.draft = draft, .alpha = alpha};
          Run run(16, batch);
          run.rounds(world, 40);
          const double best = best_gamma(world.times(16), alpha).speedup;
          CHECK(speedup(world, run.rounds(world, 600)) >= 0.97 * best);
        }
  }

  TEST_CASE("plain steps where they are faster, but for a round now and then that looks") {
    const World world{.draft = 0.5, .alpha = 0.2};
    Run run(16, 8);
    run.rounds(world, 20);
    const std::vector<int> chosen = run.rounds(world, 1000);
    CHECK(chosen[0] >= 980);
    CHECK(chosen[0] < 1000);
  }

  TEST_CASE("it follows texts that change") {
    const World easy{.draft = 0.05, .alpha = 0.95}, hard{.draft = 0.05, .row = 0.1, .alpha = 0.1};
    Run run(16, 4);
    run.rounds(easy, 300);
    CHECK(run.chooser.alpha() == doctest::Approx(0.95).epsilon(0.03));
    run.rounds(hard, 1500);
    const double best_hard = best_gamma(hard.times(16), hard.alpha).speedup;
    CHECK(speedup(hard, run.rounds(hard, 300)) >= 0.97 * best_hard);
    run.rounds(easy, 1500);
    CHECK(speedup(easy, run.rounds(easy, 300)) >=
          0.97 * best_gamma(easy.times(16), easy.alpha).speedup);
  }

  TEST_CASE("a batch of another size begins with what the one before has shown") {
    const World world{.draft = 0.1, .alpha = 0.9};
    Run run(16, 16);
    run.rounds(world, 100);
    run.set_batch(7);
    CHECK(run.rounds(world, 40)[0] == 0);
  }

  TEST_CASE("sequences of their own kinds: the number suits them together") {
    // One sequence accepts all, seven nothing: for those a longer chain is a loss.
    GammaChooser chooser(gammas_up_to(8));
    const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
    const auto round = [&](std::span<const int> seqs) {
      const int gamma = chooser.choose(seqs);
      std::vector<GammaChooser::Tested> tested;
      for (const int seq : seqs)
        tested.push_back(seq == 0 ? GammaChooser::Tested{seq, gamma, gamma}
                                  : GammaChooser::Tested{seq, std::min(1, gamma), 0});
      chooser.observe(gamma, seqs.size(), 1 + 0.15 * gamma, tested);
      return gamma;
    };
    for (int i = 0; i < 60; ++i) round(all);
    const std::vector<int> first = {0};
    for (int i = 0; i < 120; ++i) round(first);
    CHECK(round(first) == 8);
    for (int i = 0; i < 120; ++i) round(all);
    CHECK(round(all) <= 1);
  }

  TEST_CASE("rounds whose time is not known say what was accepted alone") {
    GammaChooser chooser({1, 2});
    const std::vector<int> seqs = {3};
    const std::vector<GammaChooser::Tested> tested = {{3, 2, 2}};
    for (int i = 0; i < 100; ++i) chooser.observe(2, seqs.size(), 0, tested);
    CHECK(chooser.alpha() > 0.9);
    CHECK(chooser.choose(seqs) == 0);  // times are still unknown
  }
}
