#include "bench/speculation/measurement.h"

#include <algorithm>

#include "bench/speculation/prompt_slots.h"
#include "bench/stats.h"

namespace tandem::bench {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

/// Times between deliveries, and of a token after the first.
void add_latencies(const StepLog& log, const Texts& texts, WayRuns& runs) {
  for (const auto& [seq, deliveries] : log.deliveries()) {
    for (size_t i = 1; i < deliveries.size(); ++i)
      runs.itl_ms.push_back(1e3 * (deliveries[i].at_s - deliveries[i - 1].at_s));
    const auto later = static_cast<double>(texts[static_cast<size_t>(seq)].size()) - 1;
    if (later > 0)
      runs.tpot_ms.push_back(1e3 * (deliveries.back().at_s - deliveries.front().at_s) / later);
  }
}

/// Tokens that the last of these steps drew beyond the end of a text.
double tokens_beyond(const StepLog& log, const Texts& texts, int steps) {
  double beyond = 0;
  for (const auto& [seq, deliveries] : log.deliveries()) {
    if (static_cast<int>(deliveries.size()) - 1 != steps) continue;
    for (const StepLog::Delivery& d : deliveries) beyond += d.tokens;
    beyond -= static_cast<double>(texts[static_cast<size_t>(seq)].size());
  }
  return beyond;
}

/// Decodes in one way again and again.
class Runner {
 public:
  Runner(decode::Engine& engine, const Way& way, const MeasureSpec& spec)
      : engine_(engine), spec_(spec) {
    runs_.way = way;
    runs_.new_tokens = spec.how.max_tokens;
  }

  /// errors   kind recipe: a rule of verification that does not suit the draft
  void open(BenchEngines& engines) {
    const Way& way = runs_.way;
    if (way.is_plain()) {
      decoder_ = decode::plain_decoder(engine_);
      return;
    }
    speculate::RoundOptions options{.verify = spec_.verify, .floor = spec_.floor};
    speculate::WithinOptions within{.verify = spec_.verify_within};
    if (way.simulated) options.simulate = way.acceptance;
    if (way.simulated && way.nested) within.simulate = way.nested->acceptance;
    auto rounds = engines.rounds(way, std::move(within), std::move(options));
    rounds_ = rounds.get();
    decoder_ = std::move(rounds);
    runs_.by_output.assign(kOutputParts, {"", "", speculate::TreeRoom::of(way.tree)});
  }

  /// result   the sequences' new tokens
  Texts run(const PromptSlots& prompts, int64_t seed, bool is_counted) {
    decode::GenerateSpec how = spec_.how;
    how.sampler.seed = seed;
    // A GPU records graphs, those of the fewer sequences near the end too.
    constexpr int kWarmUpTokens = 8;
    if (!is_counted && !engine_.queue()) how.max_tokens = std::min(how.max_tokens, kWarmUpTokens);
    Texts texts(prompts.requests().size());
    decode::GenerateEvents events;
    events.on_token = [&](const decode::TokenEvent& e) {
      texts[static_cast<size_t>(e.seq)].push_back(e.id);
    };
    events.interrupted = spec_.interrupted;
    std::optional<speculate::RoundStats> before, after, within_before, within_after;
    const auto within = [&] {
      const speculate::RoundStats* s = rounds_ == nullptr ? nullptr : rounds_->stats_within();
      return s == nullptr ? std::nullopt : std::optional(*s);
    };
    if (rounds_ != nullptr) before = rounds_->stats();
    within_before = within();
    BatchRun batch;
    const int whole = static_cast<int>(texts.size());
    StepLog log(*decoder_, [&](const StepLog::Step& step) {
      if (step.seqs < whole) return;
      batch.whole_s += step.seconds;
      batch.whole_tokens += static_cast<double>(step.tokens);
      ++batch.whole_steps;
      if (is_counted) runs_.step_ms.push_back(1e3 * step.seconds);
      if (rounds_ == nullptr) return;
      speculate::RoundStats now = rounds_->stats();
      if (is_counted) {
        // Where the output stood before this round, of a sequence on average.
        const double token = (batch.whole_tokens - static_cast<double>(step.tokens)) / whole;
        const auto part = static_cast<size_t>(token * kOutputParts / how.max_tokens);
        runs_.by_output[std::min<size_t>(part, kOutputParts - 1)].add(
            now.since(after ? *after : *before));
      }
      after = std::move(now);
      within_after = within();
    });
    const decode::GenerateReport report =
        decode::generate(engine_, log, prompts.requests(), how, events);
    if (!is_counted) return texts;
    if (batch.whole_steps == 0)
      throw input_error("bench.prompts", "a text ended with its first token")
          .hint("leave its prompt out");
    batch.whole_tokens -= tokens_beyond(log, texts, batch.whole_steps);
    batch.prefill_s = report.prefill_s;
    batch.decode_s = report.decode_s;
    batch.new_tokens = static_cast<double>(report.new_tokens);
    add_latencies(log, texts, runs_);
    if (after) {
      const speculate::RoundStats rounds = after->since(*before);
      batch.draft_s = rounds.draft_s;
      batch.target_s = rounds.target_s;
      batch.verify_s = rounds.verify_s;
      runs_.stats ? runs_.stats->add(rounds) : void(runs_.stats = rounds);
      if (within_after) {
        const speculate::RoundStats inner = within_after->since(*within_before);
        runs_.within ? runs_.within->add(inner) : void(runs_.within = inner);
      }
    }
    runs_.batches.push_back(batch);
    return texts;
  }
  WayRuns& runs() { return runs_; }

 private:
  decode::Engine& engine_;
  const MeasureSpec& spec_;
  std::unique_ptr<decode::Decoder> decoder_;
  speculate::Rounds* rounds_ = nullptr;  // the decoder, unless it is plain
  WayRuns runs_;
};

}  // namespace

double BenchPrompts::mean_tokens() const {
  double tokens = 0, n = 0;
  for (const auto& batch : batches)
    for (const auto& prompt : batch) {
      tokens += static_cast<double>(prompt.size());
      ++n;
    }
  return tokens / n;
}

double WayRuns::step_s() const {
  std::vector<double> of_batch;
  for (const BatchRun& run : batches) of_batch.push_back(run.whole_s / run.whole_steps);
  return median(of_batch);
}

double WayRuns::tokens_per_step() const { return stats ? stats->tokens_per_round() : 1; }

double WayRuns::token_s() const {
  std::vector<double> of_batch;
  for (const BatchRun& run : batches) of_batch.push_back(token_s(run));
  return median(of_batch);
}

double WayRuns::token_s(const BatchRun& run) const {
  const double step = run.whole_s / run.whole_steps;
  if (way.simulated && !way.chooses) return step / way.expected_tokens();
  const auto batch = static_cast<double>(sequences) / static_cast<double>(batches.size());
  return run.whole_s / (run.whole_tokens / batch);
}

PointRuns measure_ways(BenchEngines& engines, const BenchPrompts& prompts,
                       const std::vector<Way>& ways, const MeasureSpec& spec,
                       const std::function<bool()>& done) {
  PointRuns point{.ways = {}, .prefill_s = {}, .batch = engines.sizes().batch};
  std::vector<std::unique_ptr<Runner>> runners;
  for (const Way& way : ways)
    runners.push_back(std::make_unique<Runner>(engines.target(), way, spec));
  // Works with a way, unless it has failed before; plain decoding must not.
  const auto attempt = [&](Runner& runner, const std::function<void()>& work) {
    if (runner.runs().error) return;
    try {
      work();
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted || &runner == runners.front().get()) throw;
      if (engines.n_ranks() > 1 && e.kind() != ErrorKind::recipe) throw;  // others go on meanwhile
      runner.runs().error = e;
    }
  };
  const auto count = [&] {
    if (!done()) throw Error(ErrorKind::interrupted, "", "interrupted");
  };
  for (auto& runner : runners) attempt(*runner, [&] { runner->open(engines); });
  for (size_t b = 0; b < prompts.batches.size(); ++b) {
    const PromptSlots slots(engines.target(), prompts.batches[b], spec.random_kv);
    if (!spec.random_kv) point.prefill_s.push_back(slots.seconds());
    const auto seed = spec.how.sampler.seed + static_cast<int64_t>(b);
    for (int i = 0; b == 0 && i < spec.warm_ups; ++i)
      for (auto& runner : runners) {
        attempt(*runner, [&] { (void)runner->run(slots, seed, false); });
        count();
      }
    Texts plain;
    for (auto& runner : runners) {
      attempt(*runner, [&] {
        const Texts texts = runner->run(slots, seed, true);
        if (plain.empty()) plain = texts;
        WayRuns& runs = runner->runs();
        runs.sequences += static_cast<int>(texts.size());
        for (size_t s = 0; s < texts.size(); ++s) runs.as_plain += texts[s] == plain[s] ? 1 : 0;
      });
      count();
    }
  }
  for (auto& runner : runners) point.ways.push_back(std::move(runner->runs()));
  return point;
}

}  // namespace tandem::bench
