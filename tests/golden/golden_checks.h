#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "golden/golden.h"
#include "worst.h"

/// The comparisons themselves, on a device.
namespace golden {

// The project's bounds for real models; small random ones have logits of a few units as well. On a
// CPU they are within kSmallTolerance of the largest.
inline constexpr double kLogitTolerance = 2e-3, kNllTolerance = 1e-4, kTie = 1e-2;
inline constexpr double kSmallTolerance = 2e-5;
inline constexpr int kMaxTokens = 12288;
// Texts up to this length are read each from its start; longer ones share what they begin with.
inline constexpr size_t kShortTokens = 1500;
enum class Texts : uint8_t { shorter, longer };

inline void check_small_models(tandem::Device device) {
  const auto& names = tandem::test::small_models();
  CHECK(names.size() >= 12);
  for (const std::string name : names) {
    CAPTURE(name);
    // A case names the longest sequence if RoPE depends on it.
    std::map<int, std::unique_ptr<Engine>> engines;
    double worst = 0, largest = 0;
    for (const auto& c : read_json(source_dir() / "tests/data/golden/small" / (name + ".json"))) {
      const Ids ids = c.at("ids");
      CAPTURE(ids.size());
      const int context = c.value("context", 256);
      auto& engine = engines[context];
      if (!engine)
        engine = make_engine(source_dir() / "tests/data/models" / name, tandem::DType::f32, context,
                             1, 512, {}, device);
      const std::vector<int> positions = c.at("positions");
      const Scored ours = in_new_sequence(*engine, [&](int slot) {
        return score(*engine, slot, ids, positions, {static_cast<int>(ids.size())});
      });
      REQUIRE(ours.logits.size() == positions.size());
      for (size_t i = 0; i < positions.size(); ++i) {
        const std::vector<float> want = c.at("logits")[i];
        REQUIRE(want.size() == ours.logits[i].size());
        for (size_t v = 0; v < want.size(); ++v) {
          worst = tandem::test::worse(worst, double(std::abs(want[v] - ours.logits[i][v])));
          largest = std::max(largest, double(std::abs(want[v])));
        }
      }
      if (!c.at("mean_nll").is_null())
        CHECK(std::abs(ours.mean_nll.at(0) - c.at("mean_nll").get<double>()) <= kNllTolerance);
      const Ids want = c.at("greedy_ids");
      const Ids text = in_new_sequence(
          *engine, [&](int slot) { return greedy(*engine, slot, ids, want.size()); });
      CHECK(first_real_difference(text, want, c.at("top1_minus_top2"), kTie) == -1);
    }
    MESSAGE(name << ": largest |logit - golden| " << worst);
    const bool on_cpu = device.kind == tandem::Device::Kind::cpu;
    CHECK(worst <= (on_cpu ? kSmallTolerance * largest : kLogitTolerance));
  }
}

/// A tiny model, and the long text that it has read last: the next one is read from where they
/// part.
class TinyModel {
 public:
  TinyModel(const std::string& name, tandem::Device device)
      : engine_(make_engine(source_dir() / "recipes/models" / name, tandem::DType::f32, kMaxTokens,
                            /*max_seqs=*/2, 512, {}, device)),
        slot_(engine_->cache().create()) {}

  Engine& engine() { return *engine_; }

  /// The sequence for `ids`, empty.
  int begin(const Ids& ids) {
    engine_->cache().release(slot_);
    slot_ = engine_->cache().create();
    read_ = ids;
    return slot_;
  }

  /// The sequence for `ids`, and how many of them it holds: never all, so that a row is left to
  /// continue from.
  std::pair<int, size_t> resume(const Ids& ids) {
    const auto parted = std::ranges::mismatch(ids, read_).in1 - ids.begin();
    const size_t n = std::min(static_cast<size_t>(parted), ids.size() - 1);
    engine_->cache().truncate(slot_, static_cast<int>(n));
    read_ = ids;
    return {slot_, n};
  }

 private:
  std::unique_ptr<Engine> engine_;
  int slot_;
  Ids read_;
};

/// Loaded once a device.
inline TinyModel& tiny_model(const std::string& name, tandem::Device device) {
  static std::map<std::string, TinyModel> models;
  return models.try_emplace(name + " " + device.name(), name, device).first->second;
}

/// The last row of a text, and the NLL of the text, beside those of a golden case.
inline void compare_logits(const std::string& model, size_t length, std::span<const float> logits,
                           double mean_nll, const nlohmann::json& c) {
  CAPTURE(model);
  CAPTURE(length);
  const Ids top = c.at("top20_ids");
  const std::vector<float> want = c.at("top20_logits");
  double worst = 0;
  for (size_t i = 0; i < top.size(); ++i)
    worst =
        tandem::test::worse(worst, double(std::abs(want[i] - logits[static_cast<size_t>(top[i])])));
  CHECK(worst <= kLogitTolerance);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double(x));
  CHECK(std::abs(std::log(sum) - c.at("logsumexp").get<double>()) <= kLogitTolerance);
  double nll_error = 0;
  if (!c.at("mean_nll").is_null()) {
    nll_error = std::abs(mean_nll - c.at("mean_nll").get<double>());
    CHECK(nll_error <= kNllTolerance);
  }
  MESSAGE(model << " at " << length << " tokens: |logit - golden| " << worst << ", |NLL - golden| "
                << nll_error);
}

/// A case of a text of its own.
inline void check_logits(const std::string& model, const Ids& ids, const nlohmann::json& c,
                         tandem::Device device) {
  Engine& engine = tiny_model(model, device).engine();
  const int n = static_cast<int>(ids.size());
  const Scored ours =
      in_new_sequence(engine, [&](int slot) { return score(engine, slot, ids, {n - 1}, {n}); });
  compare_logits(model, ids.size(), ours.logits.at(0), ours.mean_nll.at(0), c);
}

/// Cases that are beginnings of one text, shortest first, from one prefill of the longest.
inline void check_prefixes(const std::string& name, const Ids& ids,
                           const std::vector<nlohmann::json>& cases, tandem::Device device) {
  std::vector<int> last_rows, ends;
  for (const auto& c : cases) ends.push_back(c.at("length").get<int>());
  for (const int end : ends) last_rows.push_back(end - 1);
  REQUIRE(std::ranges::is_sorted(ends));
  REQUIRE(static_cast<size_t>(ends.back()) <= ids.size());
  TinyModel& model = tiny_model(name, device);
  const Ids longest(ids.begin(), ids.begin() + ends.back());
  const Scored ours = score(model.engine(), model.begin(longest), longest, last_rows, ends);
  for (size_t i = 0; i < cases.size(); ++i)
    compare_logits(name, static_cast<size_t>(ends[i]), ours.logits.at(i), ours.mean_nll.at(i),
                   cases[i]);
}

inline void check_greedy(const std::string& name, const nlohmann::json& c, tandem::Device device) {
  CAPTURE(name);
  const Ids prompt = c.at("prompt_ids"), want = c.at("greedy_ids");
  CAPTURE(prompt.size());
  TinyModel& model = tiny_model(name, device);
  Ids ours;
  if (prompt.size() <= kShortTokens) {
    ours = in_new_sequence(model.engine(), [&](int slot) {
      return greedy(model.engine(), slot, prompt, want.size());
    });
  } else {
    const auto [slot, n] = model.resume(prompt);
    ours = greedy(model.engine(), slot, std::span(prompt).subspan(n), want.size());
  }
  CHECK(first_real_difference(ours, want, c.at("top1_minus_top2"), kTie) == -1);
}

inline void check_tiny_logits(Texts texts, tandem::Device device) {
  const auto golden = read_json(source_dir() / "tests/data/golden/tiny/logits.json");
  const Ids ids = golden.at("ids");
  std::map<std::string, std::vector<nlohmann::json>> long_ones;
  for (const auto& c : golden.at("cases")) {
    const auto length = c.at("length").get<size_t>();
    REQUIRE(length <= ids.size());
    if (length > kShortTokens)
      long_ones[c.at("model")].push_back(c);
    else if (texts == Texts::shorter)
      check_logits(c.at("model"), Ids(ids.begin(), ids.begin() + static_cast<long>(length)), c,
                   device);
  }
  CHECK(long_ones.size() == 2);
  if (texts == Texts::longer)
    for (const auto& [model, cases] : long_ones) check_prefixes(model, ids, cases, device);
}

inline void check_tiny_greedy(Texts texts, tandem::Device device) {
  int n = 0;
  for (const auto& c : read_json(source_dir() / "tests/data/golden/tiny/greedy.json")) {
    if ((c.at("prompt_ids").size() > kShortTokens) != (texts == Texts::longer)) continue;
    check_greedy(c.at("model"), c, device);
    ++n;
  }
  CHECK(n >= 4);
}

}  // namespace golden
