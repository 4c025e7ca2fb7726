#include "tools/acceptance/vector.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "recipe/scalar.h"
#include "speculate/measure/depth_meter.h"
#include "speculate/measure/rule_meter.h"
#include "speculate/measure/tree_meter.h"
#include "speculate/measure/tree_recorder.h"

namespace tandem::tools {
namespace {

using bench::Json;
using speculate::TokenTree;
using Texts = std::vector<eval::Ids>;

double sum_of(const Json& row) {
  double sum = 0;
  for (const Json& x : row) sum += x.get<double>();
  return sum;
}

/// A member of a vector by depth.
Json by_depth(const Json& vector, const char* key) {
  return vector.contains("rows") ? vector.at(key) : Json::array({vector.at(key)});
}
Json rows_of(const Json& vector) {
  return by_depth(vector, vector.contains("rows") ? "rows" : "p");
}

Json json_of(const speculate::RuleMeter& meter) {
  Json list = Json::array();
  for (size_t i = 0; i < meter.rules().size(); ++i) {
    const speculate::RuleTokens& r = meter.rules()[i];
    Json by_position = Json::array();
    for (const std::vector<int64_t>& level : r.children)
      by_position.push_back(static_cast<double>(std::accumulate(level.begin(), level.end(), 0L)) /
                            static_cast<double>(r.rounds));
    Json& rule = list.emplace_back();
    rule = {{"rule", speculate::rule_name(r.rule)},
            {"rounds", r.rounds},
            {"tokens_per_round", r.tokens_per_round()},
            {"accepted_by_position", by_position}};
    if (i == 0) continue;
    const speculate::Difference gain = meter.gain(i);
    rule["gain"] = gain.relative;
    rule["gain_ci95"] = gain.half_width;
  }
  return list;
}

class VectorRun {
 public:
  VectorRun(cli::Context& cx, bench::BenchEngines& engines, const VectorSpec& spec,
            const Texts& prompts)
      : cx_(cx),
        engines_(engines),
        spec_(spec),
        prompts_(prompts),
        draft_(engines.drafter(spec.way.draft)) {
    rule_.target = rule_.draft = spec.how.sampler.rule;
    // At temperature 0 both rules take the child that is the target's best token.
    const bool drawn = spec.accept.rule != AcceptRule::topk && rule_.target.temperature > 0;
    rule_.accept_by = drawn ? AcceptBy::sequoia : AcceptBy::match;
    rule_.wants_logprobs = false;
  }

  Json measure() {
    const int width = spec_.accept.width;
    if (!spec_.tree && spec_.accept.depths > 1) {
      speculate::DepthMeter meter(engines_.target(), draft_, rule_, width, spec_.accept.depths);
      write_texts(meter);
      add_rows(meter.rows());
      return json();
    }
    // Without a tree each position is the root of a step that accepts nothing.
    std::vector<std::vector<int>> accepted(prompts_.size());
    const Texts texts = spec_.tree ? write_by_rounds(accepted)
                                   : write_texts(*decode::plain_decoder(engines_.target()));
    if (is_by_sequences(spec_.accept.rule) && rules_) {
      add_rows(rules_->rules().back());
      return json();
    }
    speculate::TreeMeter meter(engines_.target(), draft_, rule_,
                               spec_.tree ? *spec_.tree : speculate::star_tree(width), width);
    cli::Progress progress(cx_.terminal, "measure", static_cast<double>(texts.size()), "texts");
    for (size_t i = 0; i < texts.size(); progress.update(static_cast<double>(++i))) {
      const int seq = static_cast<int>(i), n_prompt = static_cast<int>(prompts_[i].size());
      if (spec_.tree)
        meter.add(seq, seed(), texts[i], n_prompt, accepted[i]);
      else
        meter.add_positions(seq, seed(), texts[i], n_prompt);
    }
    lost_ = meter.lost();
    add_rows(meter.rows());
    return json();
  }

 private:
  int64_t seed() const { return spec_.how.sampler.seed; }

  /// The prompts and what follows them by `decoder`.
  Texts write_texts(decode::Decoder& decoder) {
    Texts texts = prompts_;
    std::vector<decode::Request> requests(prompts_.size());
    for (size_t i = 0; i < prompts_.size(); ++i) requests[i].tokens = prompts_[i];
    cli::Progress progress(cx_.terminal, "texts", static_cast<double>(texts.size()), "");
    double done = 0;
    decode::GenerateEvents events;
    events.interrupted = cli::agree_interrupted;
    events.on_token = [&](const decode::TokenEvent& e) {
      texts[static_cast<size_t>(e.seq)].push_back(e.id);
    };
    events.on_finish = [&](int, decode::Finish, const std::string&) { progress.update(++done); };
    decode::generate(engines_.target(), decoder, requests, spec_.how, events);
    return texts;
  }

  /// Writes the texts by rounds of accept.tree. On the CPU the rules are compared on its trees.
  /// accepted   gets the nodes of each round, by text
  Texts write_by_rounds(std::vector<std::vector<int>>& accepted) {
    const TokenTree& tree = *spec_.tree;
    speculate::RoundOptions options{.on_round = [&](const speculate::RoundEvent& e) {
      accepted[static_cast<size_t>(e.seq)].push_back(e.accepted);
    }};
    options.verify = verify_choice(spec_.accept.rule);
    if (rule_.accept_by != AcceptBy::match && engines_.device().kind == Device::Kind::cpu)
      rules_.emplace(std::array{AcceptBy::sequoia, std::ranges::max(tree.n_children) == 1
                                                       ? AcceptBy::block
                                                       : AcceptBy::traversal});
    std::optional<speculate::TreeRecorder> recorder;
    if (!spec_.accept.record.empty()) recorder.emplace(tree, recorded_run());
    if (rules_ || recorder)
      options.on_verified = [&](const speculate::Round& round, const Tensor& logits) {
        if (rules_) rules_->add(round, logits);
        if (recorder) recorder->add(round, logits);
      };
    const auto rounds = engines_.rounds(spec_.way, {}, std::move(options));
    Texts texts = write_texts(*rounds);
    tokens_per_round_ = rounds->stats().tokens_per_round();
    if (recorder) {
      speculate::write_tree_rounds(spec_.accept.record, recorder->rounds(), cx_.existing());
      cx_.note(fmt::format("recorded {} speculation steps of {} nodes in {}",
                           recorder->rounds().size(), tree.size(), spec_.accept.record.string()));
    }
    return texts;
  }

  /// Each mean is unbiased, so that a few nodes may give a sum above 1, which no reader takes.
  void add_row(std::vector<double> mean, std::vector<double> errors, int64_t n) {
    const double all = std::accumulate(mean.begin(), mean.end(), 0.0);
    if (all > 1)
      for (std::vector<double>* list : {&mean, &errors})
        for (double& x : *list) x /= all;
    p_.push_back(mean);
    error_.push_back(errors);
    residual_.push_back(std::max(0.0, 1 - std::accumulate(mean.begin(), mean.end(), 0.0)));
    samples_.push_back(n);
  }
  /// Leaves out the last ones, at depths that no text came to.
  void add_rows(const std::vector<speculate::ChanceSums>& sums) {
    for (size_t d = 0; d < sums.size() && (d == 0 || sums[d].samples() > 0); ++d) {
      std::vector<double> mean, errors;
      for (int k = 0; k < sums[d].width(); ++k) {
        mean.push_back(sums[d].mean(k));
        errors.push_back(sums[d].standard_error(k));
      }
      add_row(std::move(mean), std::move(errors), sums[d].samples());
    }
  }
  /// The rates at which children were accepted of nodes on accepted paths.
  void add_rows(const speculate::RuleTokens& rule) {
    for (size_t level = 0; level < rule.children.size() && rule.reached[level] > 0; ++level) {
      const auto n = static_cast<double>(rule.reached[level]);
      std::vector<double> mean, errors;
      for (const int64_t accepted : rule.children[level]) {
        mean.push_back(static_cast<double>(accepted) / n);
        errors.push_back(std::sqrt(mean.back() * (1 - mean.back()) / n));
      }
      add_row(std::move(mean), std::move(errors), rule.reached[level]);
    }
  }

  /// Returns the header of a record of rounds.
  speculate::RecordedRun recorded_run() {
    const decode::ModelFiles &target = engines_.target().files(), &draft = draft_.engine->files();
    return {.target = target.name,
            .draft = draft.name,
            .target_fingerprint = target.fingerprint,
            .draft_fingerprint = draft.fingerprint,
            .verify = recipe::yaml_text(verify_choice(spec_.accept.rule)),
            .sampling = spec_.how.sampler.rule,
            .seed = seed()};
  }

  Json json() {
    const std::string method = rule_.accept_by != AcceptBy::match
                                   ? recipe::yaml_text(spec_.accept.rule)
                               : rule_.target.temperature > 0 ? "topk-sample"
                                                              : "topk-greedy";
    const auto one_or_all = [](const Json& list) { return list.size() == 1 ? list[0] : list; };
    Json vector = {{"format", "acceptance-vector/1"},
                   {"method", method},
                   {p_.size() == 1 ? "p" : "rows", one_or_all(p_)},
                   {"residual", one_or_all(residual_)},
                   {"stderr", one_or_all(error_)},
                   {"samples", one_or_all(samples_)},
                   {"target", engines_.target().files().name},
                   {"draft", spec_.way.draft.shares_cache() ? spec_.way.draft.name
                                                            : draft_.engine->files().name},
                   {"temperature", spec_.temperature},
                   {"top_p", spec_.top_p},
                   {"seed", seed()}};
    if (spec_.tree)
      vector["tree"] = {
          {"nodes", spec_.tree->size()},
          {"levels", spec_.tree->levels()},
          {"tokens_per_round", tokens_per_round_},
          {"expected_tokens",
           speculate::expected_tokens(*spec_.tree,
                                      {.rows = p_, .method = method, .file = {}, .sha256 = {}})},
          {"tokens_lost", lost_}};
    if (rules_) vector["rules"] = json_of(*rules_);
    return vector;
  }

  cli::Context& cx_;
  bench::BenchEngines& engines_;
  const VectorSpec& spec_;
  const Texts& prompts_;
  speculate::Reader draft_;
  ops::VerifyRule rule_;
  Json p_ = Json::array(), error_ = p_, residual_ = p_, samples_ = p_;  // by depth
  double tokens_per_round_ = 0;  // counted in rounds of the tree
  std::optional<speculate::RuleMeter> rules_;
  int64_t lost_ = 0;  // accepted tokens that TreeMeter did not find again
};

}  // namespace

Json measure_vector(cli::Context& cx, bench::BenchEngines& engines, const VectorSpec& spec,
                    const Texts& prompts) {
  return VectorRun(cx, engines, spec, prompts).measure();
}

void note_vector(const cli::Context& cx, const Json& vector) {
  const Json rows = rows_of(vector), errors = by_depth(vector, "stderr"),
             samples = by_depth(vector, "samples");
  for (size_t d = 0; d < rows.size(); ++d)
    cx.note(
        fmt::format("{}{} positions: first child accepted {:.1f} % (+- {:.1f}), any of {} "
                    "accepted {:.1f} %",
                    rows.size() > 1 ? fmt::format("depth {}: ", d) : "", samples[d].get<int64_t>(),
                    100 * rows[d][0].get<double>(), 100 * errors[d][0].get<double>(),
                    rows[d].size(), 100 * sum_of(rows[d])));
  if (const auto tree = vector.find("tree"); tree != vector.end()) {
    cx.note(fmt::format("the tree gave {:.3f} tokens per step, {:.3f} predicted from these rows",
                        tree->at("tokens_per_round").get<double>(),
                        tree->at("expected_tokens").get<double>()));
    if (const auto lost = tree->at("tokens_lost").get<int64_t>(); lost > 0)
      cx.note(fmt::format(
          "{} accepted tokens were not sampled again, because sums in another order round "
          "differently. Nodes below them are not counted",
          lost));
  }
  if (const auto rules = vector.find("rules"); rules != vector.end()) {
    const Json &base = rules->front(), &other = rules->back();
    cx.note(fmt::format(
        "on the same trees: {:.3f} tokens per step by {}, {:.3f} by {}, {:+.1f} % (+- {:.1f}), "
        "including the target's token",
        base["tokens_per_round"].get<double>(), base["rule"].get<std::string>(),
        other["tokens_per_round"].get<double>(), other["rule"].get<std::string>(),
        100 * other["gain"].get<double>(), 100 * other["gain_ci95"].get<double>()));
  }
}

io::Table vector_table(const Json& vector) {
  io::Table table({{"depth"}, {"child"}, {"accepted"}, {"stderr"}, {"positions"}});
  const Json rows = rows_of(vector), errors = by_depth(vector, "stderr"),
             samples = by_depth(vector, "samples");
  for (size_t depth = 0; depth < rows.size(); ++depth)
    for (size_t k = 0; k < rows[depth].size(); ++k)
      table.add_row({rows.size() > 1 ? std::to_string(depth) : "", std::to_string(k + 1),
                     fmt::format("{:.6f}", rows[depth][k].get<double>()),
                     fmt::format("{:.6f}", errors[depth][k].get<double>()), samples[depth].dump()});
  return table;
}

}  // namespace tandem::tools
