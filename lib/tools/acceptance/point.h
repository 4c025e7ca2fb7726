#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/speculation/bench_engines.h"
#include "bench/speculation/prompt_slots.h"
#include "cli/context.h"
#include "speculate/measure/forced_meter.h"
#include "tools/acceptance/figures.h"
#include "tools/acceptance/texts.h"
#include "tools/acceptance/vector.h"
#include "tools/bench/draft_sweep.h"

namespace tandem::tools {

/// A point of a sweep: all drafts at all temperatures on texts of one kind. The target reads each
/// prompt once, and all drafts continue from there.
class AcceptancePoint {
 public:
  using Recipe = AcceptanceRecipe;
  using Point = cli::Point<Recipe>;
  using Part = speculate::NamedDraft;
  static constexpr std::string_view kWords = kAcceptanceWords;
  static std::vector<bench::RecordView> views();
  static bool is_empty(const Recipe& r) { return r.drafts().empty(); }
  static const std::string& name_of(const speculate::NamedDraft& draft) { return draft.name; }

  /// errors   those of BenchEngines and of prompts; kind recipe: a GPU, where only the CPU measures;
  ///          accept.width and accept.tree that do not go together
  AcceptancePoint(cli::Context& cx, const Point& point);

  /// Admits the drafts that can be measured, and sizes the engines for them.
  /// refused  gets those that cannot
  /// earlier  drafts with all their records there are left out
  void admit(const std::function<void(const speculate::NamedDraft&, const Error&)>& refused,
             const BenchResults* earlier);
  const bench::BenchEngines& engines() const { return engines_; }

  /// Measures the admitted drafts and reports each by `results`.
  void run(BenchResults& results);
  /// Measures the first of them at the first temperature.
  bench::Json vector();
  /// Records a draft that was refused or failed; null: all of the point.
  static void fail(const cli::Context& cx, BenchResults& results, const Point& point,
                   const speculate::NamedDraft* draft, const Error& error);

 private:
  /// Figures of rounds: by distributions, and counted.
  struct RoundFigures {
    speculate::ChainMeter chances;
    std::optional<speculate::RoundStats> counts = {};  // none without rounds

    void add(const speculate::RoundStats& stats);
    bench::Json json() const;
  };
  /// Figures of a draft at one temperature.
  struct Figures {
    TestedAcceptance tested;
    RoundFigures rounds;
    AcceptanceByOutput by_output;
    std::optional<RoundFigures> within = {};  // of a nested one
    bench::Json vector = {};
  };
  struct Measured {
    speculate::NamedDraft draft;
    bench::Way way;
    std::vector<Figures> at = {};  // by temperature
    std::optional<Error> error = {};
  };

  const AcceptanceBench& bench() const { return point_.recipe.bench; }
  /// The prompts of the command line, with the sizes that follow.
  void read_given();
  /// errors   kind recipe: accept.rule, accept.record, ...
  void check_vector();
  std::string phase_of(const speculate::NamedDraft& draft, double temperature) const {
    return fmt::format("{} T {:g}{}", draft.name, temperature, which_prompts_);
  }
  bench::Way way_of(const speculate::NamedDraft& draft) const;
  /// Returns the way whose rounds write texts for a vector.
  bench::Way tree_way(const speculate::NamedDraft& draft) const;
  bench::Json vector_of(const speculate::NamedDraft& draft, double temperature,
                        const std::vector<eval::Ids>& prompts);
  void attempt_draft(Measured& m, const std::function<void()>& work);
  /// count    called after each run
  /// done     called with each draft that is done with these texts
  void measure(std::vector<MeasuredText>& texts, int64_t seed, const std::function<void()>& count,
               const std::function<void(const Measured&)>& done);
  /// Writes the rest of what follows documents, by the target at temperature 1.
  void complete(std::vector<MeasuredText>& texts, const bench::PromptSlots& slots, int64_t seed);
  /// Teacher forcing of several readings of the target at once, or of one other model.
  void force(const std::vector<Measured*>& drafts, const bench::PromptSlots& slots,
             const std::vector<MeasuredText>& texts);
  void run_rounds(Measured& draft, size_t temperature, const std::vector<MeasuredText>& texts,
                  const bench::PromptSlots& slots, int64_t seed);
  decode::GenerateSpec generation(double temperature, int64_t seed, int max_tokens);
  void report(BenchResults& results, const MeasuredTexts& texts, const Measured& draft);

  cli::Context& cx_;
  const Point& point_;
  bench::BenchEngines engines_;
  recipe::Sampling sampling_;  // settled
  std::vector<double> temperatures_;
  std::vector<eval::Ids> given_;
  std::string which_prompts_;  // names the given prompts in phases
  std::optional<speculate::TokenTree> tree_;
  std::vector<Measured> drafts_;
};

/// A program that writes the acceptance vector of one draft at one temperature, by default on texts
/// that the target writes after given prompts.
class AcceptanceVectorTool {
 public:
  struct Recipe : AcceptanceRecipe {
    Recipe();
    void check(recipe::Problems& p) const;
  };

  AcceptanceVectorTool(cli::Context& cx, const cli::Point<Recipe>& point)
      : cx_(cx), point_{point, point.recipe} {}

  int print_plan() { return DraftSweep<AcceptancePoint>(cx_, {point_}).print_plan(); }
  /// Writes the vector as acceptance-vector/1, or as a table.
  int run();

 private:
  cli::Context& cx_;
  AcceptancePoint::Point point_;
};

}  // namespace tandem::tools
