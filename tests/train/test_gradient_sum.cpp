#include <doctest/doctest.h>

#include <cstring>

#include "train/low_rank_runs.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A rank alone, which notes the numbers that it is to add up.
class Notes final : public Comm {
 public:
  struct Sum {
    const float* at;
    std::vector<float> numbers, watched;
  };
  std::vector<Sum> sums;
  std::span<const float> watched = {};  // what it holds at each sum

  int rank() const override { return 0; }
  int size() const override { return 1; }
  void sum(const Tensor& x, Stream /*stream*/) override {
    sums.push_back({x.as<float>(),
                    {x.as<float>(), x.as<float>() + x.elements()},
                    {watched.begin(), watched.end()}});
  }
  double sum_of(double mine) override { return mine; }
  double of_rank0(double mine) override { return mine; }
  void gather(void* /*all*/, size_t /*part_bytes*/, Stream /*stream*/) override {}
  void gather_on_host(std::byte* /*all*/, size_t /*part_bytes*/) override {}
};

std::vector<train::TrainedSet> sets_of(const train::TrainerSpec& spec) {
  return {train::full_set(spec.config),
          train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config),
          train::low_rank_set(spec.config, small_factors(), true, 3)};
}

}  // namespace

TEST_SUITE("train/gradient_sum") {
  TEST_CASE("buckets hold every number once, in the order in which a pass completes them") {
    for (const char* model : {"llama-3.2-tied", "qwen2-untied-sharded"}) {
      const train::TrainerSpec spec = trainer_spec(model);
      for (const train::TrainedSet& set : sets_of(spec))
        for (const int64_t least : {int64_t{1}, set.size / 2, set.size + 1}) {
          CAPTURE(model);
          CAPTURE(least);
          const auto buckets = train::gradient_buckets(set, least);
          std::vector<int> times(static_cast<size_t>(set.size));
          int last = spec.config.n_layers;
          for (const train::GradientBucket& b : buckets) {
            CHECK(b.complete_with <= last);
            last = b.complete_with;
            if (b.complete_with > 0 && b.complete_with < spec.config.n_layers)
              CHECK(b.end - b.begin >= least);
            for (int64_t i = b.begin; i < b.end; ++i) ++times[static_cast<size_t>(i)];
          }
          CHECK(std::ranges::all_of(times, [](int n) { return n == 1; }));
          if (least == 1) CHECK(std::ssize(buckets) >= spec.config.n_layers);
        }
    }
  }

  TEST_CASE("ranks are given numbers that no later work of the step changes") {
    for (const char* model : {"llama-3.2-tied", "qwen2-untied-sharded", "qwen3-odd"}) {
      train::TrainerSpec spec = trainer_spec(model);
      const auto notes = std::make_shared<Notes>();
      spec.comm = notes;
      spec.summed_at_once = 1;
      for (const train::TrainedSet& set : sets_of(spec)) {
        CAPTURE(model);
        const auto trainer = make_trainer(model, spec, set);
        const int vocab = spec.config.vocab_size;
        // The last has nothing supervised, and must not be waited for.
        const std::vector<train::MicroBatch> batches = {
            random_documents({20, 30}, vocab, 1), random_documents({15}, vocab, 2),
            random_documents({9}, vocab, 3, [](size_t) { return false; })};
        notes->sums.clear();
        // Of layer 0, which a pass comes to last.
        notes->watched =
            trainer->gradient().first(static_cast<size_t>(set.layers[1][model::Role::qkv].offset));
        trainer->gradients(batches);
        size_t n = 0;
        for (const Notes::Sum& sum : notes->sums) {
          n += sum.numbers.size();
          CHECK(std::memcmp(sum.at, sum.numbers.data(), sum.numbers.size() * sizeof(float)) == 0);
        }
        CHECK(n == trainer->gradient().size());
        CHECK(std::ssize(notes->sums) >= spec.config.n_layers);
        CHECK(norm_of(trainer->gradient()) > 0);
        // The first sum is under way before that layer has its gradient.
        CHECK(notes->sums.front().watched !=
              std::vector<float>(notes->watched.begin(), notes->watched.end()));
      }
    }
  }
}
