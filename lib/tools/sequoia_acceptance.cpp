#include "tools/sequoia_acceptance.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/record_view.h"
#include "cli/output.h"
#include "cli/plan_text.h"
#include "decode/generate_prompts.h"
#include "decode/suggested_sampling.h"
#include "kv/policy.h"
#include "recipe/fields_of.h"
#include "speculate/measure/depth_meter.h"
#include "speculate/measure/tree_meter.h"
#include "speculate/tree/tree_file.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

ops::VerifyRule verify_rule(const AcceptanceRecipe& recipe, const ops::SampleRule& target) {
  ops::VerifyRule rule;
  rule.target = rule.draft = target;
  // At temperature 0 both rules take the child that is the target's best token.
  const bool drawn = recipe.accept.rule != AcceptRule::topk && target.temperature > 0;
  rule.accept_by = drawn ? AcceptBy::sequoia : AcceptBy::match;
  rule.wants_logprobs = false;
  return rule;
}

std::string method_of(AcceptRule by, const ops::VerifyRule& rule) {
  if (rule.accept_by != AcceptBy::match)
    return std::string(enum_names(by)[static_cast<size_t>(by)]);
  return rule.target.temperature > 0 ? "topk-sample" : "topk-greedy";
}

/// The tree whose rounds are asked about.
/// errors   kind input: no such tree, or none below its root; kind recipe: accept.width
std::optional<speculate::TokenTree> read_accept_tree(const AcceptanceSection& accept) {
  if (accept.tree.empty()) return {};
  speculate::TokenTree tree = speculate::read_tree(accept.tree).tree;
  if (tree.size() < 2 || tree.size() > kv::kMaxTreeRows)
    throw input_error(accept.tree.string(), "has {} nodes, expected 2 to {}", tree.size(),
                      kv::kMaxTreeRows);
  if (const int most = std::ranges::max(tree.n_children); most > accept.width)
    throw recipe_error("accept.width", "is {}, but a node of {} has {} children", accept.width,
                       accept.tree.string(), most);
  return tree;
}

/// The rule that rounds of a tree verify by.
speculate::VerifyChoice verify_choice(AcceptRule rule) {
  using enum speculate::VerifyChoice;
  return rule == AcceptRule::block ? block : rule == AcceptRule::traversal ? traversal : sequoia;
}

bool is_by_sequences(AcceptRule rule) {
  return rule == AcceptRule::block || rule == AcceptRule::traversal;
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

using Row = SequoiaAcceptance::Row;
using Rows = SequoiaAcceptance::Rows;

/// Leaves out the last ones, at depths that no text came to.
Rows rows_of(std::vector<speculate::ChanceSums> sums) {
  while (sums.size() > 1 && sums.back().samples() == 0) sums.pop_back();
  Rows rows;
  for (const speculate::ChanceSums& of_depth : sums) {
    Row& row = rows.emplace_back();
    row.samples = of_depth.samples();
    for (int k = 0; k < of_depth.width(); ++k) {
      row.mean.push_back(of_depth.mean(k));
      row.error.push_back(of_depth.standard_error(k));
    }
  }
  return rows;
}

/// The rates at which children were accepted of nodes on accepted paths.
Rows counted(const speculate::RuleTokens& rule) {
  Rows rows;
  for (size_t level = 0; level < rule.children.size() && rule.reached[level] > 0; ++level) {
    Row& row = rows.emplace_back();
    row.samples = rule.reached[level];
    const auto n = static_cast<double>(row.samples);
    for (const int64_t accepted : rule.children[level]) {
      const double p = static_cast<double>(accepted) / n;
      row.mean.push_back(p);
      row.error.push_back(std::sqrt(p * (1 - p) / n));
    }
  }
  return rows;
}

/// A row for each child, for --format text, md and csv.
io::Table table_of(const Rows& rows) {
  io::Table table({{"depth"}, {"child"}, {"accepted"}, {"stderr"}, {"positions"}});
  for (size_t depth = 0; depth < rows.size(); ++depth)
    for (size_t k = 0; k < rows[depth].mean.size(); ++k)
      table.add_row({rows.size() > 1 ? std::to_string(depth) : "", std::to_string(k + 1),
                     fmt::format("{:.6f}", rows[depth].mean[k]),
                     fmt::format("{:.6f}", rows[depth].error[k]),
                     std::to_string(rows[depth].samples)});
  return table;
}

}  // namespace

void AcceptanceRecipe::check(recipe::Problems& p) const {
  spec.require_draft(p);
  if (!kv::needs_of(spec.draft.cache).reads_all)
    p.field("spec.draft.cache.kind",
            "spec.draft.cache.kind: expected full; measure drafts with a sparse KV cache with "
            "magicdec-acceptance");
  recipe::refuse_states(model, output, p);
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs",
            "output.top_logprobs: is not supported, since the output is an acceptance vector; "
            "leave it out");
  if (sampling.max_tokens < 2)
    p.field("sampling.max_tokens", "sampling.max_tokens: expected at least 2 tokens of the target");
  if (!accept.tree.empty() && accept.depths > 1)
    p.field("accept.depths",
            "accept.depths: cannot be combined with accept.tree, which has its own depth; leave "
            "one out");
  if (!accept.tree.empty() && accept.rule == AcceptRule::topk &&
      sampling.temperature.value_or(0) > 0)
    p.field(
        "accept.rule",
        "accept.rule: topk does not support accept.tree at a temperature above 0; leave topk out");
  if (accept.tree.empty() && !accept.record.empty())
    p.field("accept.record",
            "accept.record: needs accept.tree, whose speculation steps it records; set it");
  if (accept.tree.empty() && is_by_sequences(accept.rule))
    p.field("accept.rule",
            "accept.rule: block and traversal need accept.tree, whose paths they accept; set it");
}

SequoiaAcceptance::SequoiaAcceptance(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      recipe_(point.recipe),
      pair_(recipe_.model, recipe_.run, {.model = &recipe_.spec.draft}, cx),
      sampling_(settled_sampling(cx, recipe_.sampling, pair_.target())) {
  constexpr int kLeastNew = 2;
  if (!recipe_.accept.tree.empty() && recipe_.accept.rule == AcceptRule::topk &&
      sampling_.temperature.value_or(0) > 0)
    throw recipe_error("accept.rule", "topk does not support accept.tree at a temperature above 0")
        .hint("leave topk out");
  const decode::PromptSource source = prompt_source(cx, recipe_.chat);
  const int vocab = pair_.target().config.vocab_size;
  if (recipe_.accept.width > vocab)
    throw recipe_error("accept.width", "is {}, but the vocabulary has only {} tokens",
                       recipe_.accept.width, vocab);
  if (!source.empty())
    prompts_ = decode::read_prompts(source, pair_.target(), false,
                                    {.context = pair_.context(), .least_new = kLeastNew});
  prompts_.shared = 0;  // texts come one after the other
  require_same(cx, prompts_);
  tree_ = read_accept_tree(recipe_.accept);
  if (tree_) (void)speculate::rule_for(verify_choice(recipe_.accept.rule), true, *tree_, false);
  if (is_by_sequences(recipe_.accept.rule) && pair_.device().kind == Device::Kind::cuda)
    throw recipe_error("accept.rule", "is {}, which is supported only on the CPU",
                       enum_names(recipe_.accept.rule)[static_cast<size_t>(recipe_.accept.rule)])
        .hint("add --device cpu");
  if (!recipe_.accept.record.empty() && pair_.device().kind == Device::Kind::cuda)
    throw recipe_error("accept.record", "recording is supported only on the CPU")
        .hint("add --device cpu");
  if (!recipe_.accept.record.empty() && !cx.dry_run())
    cli::check_new_file(recipe_.accept.record, cx.file_mode());
  const speculate::RoundNeeds reading{.rows = speculate::TreeMeter::kRowsAtOnce, .logit_rows = speculate::TreeMeter::kRowsAtOnce};
  const speculate::TreeRoom rounds =
      tree_ ? speculate::TreeRoom::of(*tree_) : speculate::TreeRoom{};
  const decode::SequenceRoom room =
      decode::room_for(prompts_, {.context = pair_.context(),
                                  .max_tokens = recipe_.sampling.max_tokens,
                                  .least_new = kLeastNew,
                                  .batch = 1});
  longest_ = static_cast<int>(room.longest);
  pair_.size(
      room,
      tree_ ? reading.with(speculate::target_needs(rounds, 1, pair_.target().config.vocab_size))
            : reading,
      tree_ ? reading.with(speculate::draft_needs(rounds, 1)) : reading, [&](MemoryPlan& plan) {
        const model::ModelConfig& target = pair_.target().config;
        plan.add("speculation/logits of both models",
                 size_t{2} * speculate::TreeMeter::kRowsAtOnce *
                     static_cast<size_t>(target.vocab_size) * sizeof(float));
        if (tree_) speculate::plan_rounds(rounds, pair_.target_spec(), target, true, plan);
      });
}

int SequoiaAcceptance::print_plan() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  if (!tree_) return cli::print_plan(cx_, pair_, "", Json::object());
  return cli::print_plan(cx_, pair_,
                         fmt::format("tree     {} nodes on {} levels, used to generate the texts\n",
                                     tree_->size(), tree_->levels()),
                         {{"tree", speculate::tree_facts(*tree_)}});
}

SequoiaAcceptance::Texts SequoiaAcceptance::write_texts(decode::Engine& target,
                                                        decode::Decoder& decoder,
                                                        const decode::GenerateSpec& how) {
  Texts texts = prompts_.sequences;
  cli::Progress progress(cx_.terminal, "texts", static_cast<double>(texts.size()), "");
  double done = 0;
  decode::GenerateEvents events;
  events.interrupted = cli::agree_interrupted;
  events.on_token = [&](const decode::TokenEvent& e) {
    texts[static_cast<size_t>(e.seq)].push_back(e.id);
  };
  events.on_finish = [&](int, decode::Finish, const std::string&) { progress.update(++done); };
  decode::generate(target, decoder, decode::requests_of(prompts_), how, events);
  return texts;
}

void SequoiaAcceptance::for_each_text(const std::function<void(size_t i, int n_prompt)>& read) {
  const auto& prompts = prompts_.sequences;
  cli::Progress progress(cx_.terminal, "measure", static_cast<double>(prompts.size()), "texts");
  for (size_t i = 0; i < prompts.size(); ++i) {
    read(i, static_cast<int>(prompts[i].size()));
    progress.update(static_cast<double>(i + 1));
  }
}

SequoiaAcceptance::Rows SequoiaAcceptance::measure_positions(
    const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
    const decode::GenerateSpec& how) {
  const int width = recipe_.accept.width;
  speculate::TreeMeter meter(*engines.target, *engines.draft, rule, speculate::star_tree(width),
                             width);
  const auto plain = decode::plain_decoder(*engines.target);
  const Texts texts = write_texts(*engines.target, *plain, how);
  for_each_text([&](size_t i, int n_prompt) {
    meter.add_positions(static_cast<int>(i), recipe_.run.seed, texts[i], n_prompt);
  });
  return rows_of(meter.rows());
}

SequoiaAcceptance::Rows SequoiaAcceptance::measure_depths(
    const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
    const decode::GenerateSpec& how) {
  speculate::DepthMeter meter(*engines.target, *engines.draft, rule, recipe_.accept.width,
                              recipe_.accept.depths);
  write_texts(*engines.target, meter, how);
  return rows_of(meter.rows());
}

SequoiaAcceptance::Rows SequoiaAcceptance::measure_tree(
    const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
    const decode::GenerateSpec& how) {
  std::vector<std::vector<int>> accepted(prompts_.sequences.size());
  speculate::RoundOptions options{.on_round = [&](const speculate::RoundEvent& e) {
    accepted[static_cast<size_t>(e.seq)].push_back(e.accepted);
  }};
  options.verify = verify_choice(recipe_.accept.rule);
  const bool compares =
      rule.accept_by != AcceptBy::match && engines.target->spec().device.kind == Device::Kind::cpu;
  if (compares) {
    const bool is_chain = std::ranges::max(tree_->n_children) == 1;
    rules_.emplace(std::array{AcceptBy::sequoia, is_chain ? AcceptBy::block : AcceptBy::traversal});
  }
  if (!recipe_.accept.record.empty())
    recorder_.emplace(*tree_, recorded_run(engines, how.sampler.rule));
  if (rules_ || recorder_)
    options.on_verified = [&](const speculate::Round& round, const Tensor& logits) {
      if (rules_) rules_->add(round, logits);
      if (recorder_) recorder_->add(round, logits);
    };
  const auto rounds = speculate::model_rounds(*engines.target, *engines.draft, *tree_, options);
  const Texts texts = write_texts(*engines.target, *rounds, how);
  tokens_per_round_ = rounds->stats().tokens_per_round();
  if (is_by_sequences(recipe_.accept.rule) && rules_) return counted(rules_->rules().back());
  speculate::TreeMeter meter(*engines.target, *engines.draft, rule, *tree_, recipe_.accept.width);
  for_each_text([&](size_t i, int n_prompt) {
    meter.add(static_cast<int>(i), recipe_.run.seed, texts[i], n_prompt, accepted[i]);
  });
  lost_ = meter.lost();
  return rows_of(meter.rows());
}

speculate::RecordedRun SequoiaAcceptance::recorded_run(const speculate::ModelPair::Engines& engines,
                                                       const ops::SampleRule& sampling) const {
  const auto verify = static_cast<size_t>(verify_choice(recipe_.accept.rule));
  const decode::ModelFiles &target = engines.target->files(), &draft = engines.draft->files();
  return {.target = target.name,
          .draft = draft.name,
          .target_fingerprint = target.fingerprint,
          .draft_fingerprint = draft.fingerprint,
          .verify = std::string(enum_names(speculate::VerifyChoice{})[verify]),
          .sampling = sampling,
          .seed = recipe_.run.seed};
}

Json SequoiaAcceptance::vector_of(const Rows& rows, const std::string& method) const {
  Json p = Json::array(), error = Json::array(), residual = Json::array(), samples = Json::array();
  for (const Row& row : rows) {
    const double all = std::accumulate(row.mean.begin(), row.mean.end(), 0.0);
    cx_.note(
        fmt::format("{}{} positions: first child accepted {:.1f} % (+- {:.1f}), any of {} accepted "
                    "{:.1f} %",
                    rows.size() > 1 ? fmt::format("depth {}: ", p.size()) : "", row.samples,
                    100 * row.mean[0], 100 * row.error[0], row.mean.size(), 100 * all));
    p.push_back(row.mean);
    error.push_back(row.error);
    residual.push_back(std::max(0.0, 1 - all));
    samples.push_back(row.samples);
  }
  const auto one_or_all = [](const Json& list) { return list.size() == 1 ? list[0] : list; };
  Json vector = {{"format", "acceptance-vector/1"},
                 {"method", method},
                 {rows.size() == 1 ? "p" : "rows", one_or_all(p)},
                 {"residual", one_or_all(residual)},
                 {"stderr", one_or_all(error)},
                 {"samples", one_or_all(samples)},
                 {"target", names_[0]},
                 {"draft", names_[1]},
                 {"temperature", sampling_.temperature.value_or(0)},
                 {"top_p", sampling_.top_p.value_or(1)},
                 {"seed", recipe_.run.seed}};
  if (tree_) vector["tree"] = of_tree({.rows = p, .method = method, .file = {}, .sha256 = {}});
  if (rules_) vector["rules"] = json_of(*rules_);
  return vector;
}

Json SequoiaAcceptance::of_tree(const speculate::AcceptanceVector& measured) const {
  const double predicted = speculate::expected_tokens(*tree_, measured);
  cx_.note(fmt::format("the tree gave {:.3f} tokens per step, {:.3f} predicted from these rows",
                       tokens_per_round_, predicted));
  if (lost_ > 0)
    cx_.note(
        fmt::format("{} accepted tokens were not sampled again, because sums in another order "
                    "round differently. Nodes below them are not counted",
                    lost_));
  return {{"nodes", tree_->size()},
          {"levels", tree_->levels()},
          {"tokens_per_round", tokens_per_round_},
          {"expected_tokens", predicted},
          {"tokens_lost", lost_}};
}

void SequoiaAcceptance::note_rules() const {
  const speculate::RuleTokens &base = rules_->rules().front(), &other = rules_->rules().back();
  const speculate::Difference gain = rules_->gain(rules_->rules().size() - 1);
  cx_.note(fmt::format(
      "on the same trees: {:.3f} tokens per step by {}, {:.3f} by {}, {:+.1f} % (+- {:.1f}), "
      "including the target's token",
      base.tokens_per_round(), speculate::rule_name(base.rule), other.tokens_per_round(),
      speculate::rule_name(other.rule), 100 * gain.relative, 100 * gain.half_width));
}

int SequoiaAcceptance::run() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  const decode::GenerateSpec how =
      decode::generate_spec(sampling_, recipe_.run.seed, 0, pair_.target().config, longest_);
  cli::ResultFile result(recipe_.output.path, cx_.file_mode(), cx_.out);
  names_ = {pair_.target().name, pair_.draft().name};
  const speculate::ModelPair::Engines engines = pair_.load(cx_);
  const ops::VerifyRule rule = verify_rule(recipe_, how.sampler.rule);
  Rows rows = tree_                       ? measure_tree(engines, rule, how)
              : recipe_.accept.depths > 1 ? measure_depths(engines, rule, how)
                                          : measure_positions(engines, rule, how);
  // Each mean is unbiased, so that a few nodes may give a sum above 1, which no reader takes.
  for (Row& row : rows)
    if (const double all = std::accumulate(row.mean.begin(), row.mean.end(), 0.0); all > 1)
      for (std::vector<double>* list : {&row.mean, &row.error})
        for (double& x : *list) x /= all;
  const Json vector = vector_of(rows, method_of(recipe_.accept.rule, rule));
  result.write(cx_.format().starts_with("json")
                   ? vector.dump() + "\n"
                   : table_of(rows).render(bench::table_format(cx_.format())));
  if (rules_) note_rules();
  result.commit();
  if (recorder_) {
    speculate::write_tree_rounds(recipe_.accept.record, recorder_->rounds(), cx_.existing());
    cx_.note(fmt::format("recorded {} speculation steps of {} nodes in {}",
                         recorder_->rounds().size(), tree_->size(),
                         recipe_.accept.record.string()));
  }
  cx_.out.flush();
  return 0;
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::AcceptanceRecipe&);
