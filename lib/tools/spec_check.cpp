#include "tools/spec_check.h"

#include "bench/record.h"
#include "cli/plan_text.h"
#include "decode/generate_prompts.h"
#include "decode/suggested_sampling.h"
#include "io/jsonl.h"
#include "kv/policy.h"
#include "recipe/fields_of.h"
#include "recipe/scalar.h"
#include "speculate/plan/drafter_kinds.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

// After one prompt: with fewer, hardly an outcome is common enough to be compared.
constexpr size_t kLeastTexts = 40;

eval::TextProgress shown(cli::Progress& line) {
  return [&line](int64_t done) { return line.go_on(static_cast<double>(done)); };
}

}  // namespace

std::vector<double> LosslessSection::temperatures_of(const recipe::Sampling& sampling) const {
  if (!temperatures.empty()) return temperatures;
  if (const double t = sampling.temperature.value_or(0); t > 0) return {t};
  return {0.6, 1.0};
}

size_t LosslessSection::prompts_sampled(size_t n_given) const {
  return std::clamp<size_t>(static_cast<size_t>(texts) / kLeastTexts, 1, n_given);
}

int lower_budgets(recipe::Cache& cache, const std::string& section, Lowered& lowered) {
  const auto lower = [&](const char* key, auto& value, int most) {
    if (value <= most) return;
    value = most;
    lowered.emplace_back(section + "." + key, fmt::format("{}", most));
  };
  constexpr int kShort = 24;
  using enum recipe::CacheKind;
  switch (cache.kind) {
    case full:
      return eval::kShortestPrompt;
    case streaming:
      lower("sinks", cache.sinks.value, 1);
      lower("recent", cache.recent.value, 7);
      return kShort;
    case snapkv:
      lower("snapkv.budget", cache.snapkv.budget.value, 8);
      lower("snapkv.window", cache.snapkv.window, 2);
      return kShort;
    case retrieval:
      lower("retrieval.budget", cache.retrieval.budget.value, 8);
      lower("retrieval.chunk", cache.retrieval.chunk, 2);
      lower("retrieval.force_recent", cache.retrieval.force_recent.value, 2);
      return kShort;
    case verified:
      lower("verified.budget", cache.verified.budget.value, recipe::Verified::kLeastBudget);
      return 2 * recipe::Verified::kLeastBudget;
    case topk:
    case oracle_sampling:
    case quest:
    case lsh:
    case hybrid:
      lower("sinks", cache.sinks.value, 1);
      lower("recent", cache.recent.value, 8);
      return 4 * recipe::Hybrid::kLeastExact;
  }
  return eval::kShortestPrompt;
}

void SpecCheckRecipe::check(recipe::Problems& p) const {
  speculate::GenerateRecipe::check(p);
  recipe::refuse_states(model, output.state, p);
  if (sampling.max_tokens == 0)
    p.field("sampling.max_tokens", "sampling.max_tokens: expected at least 1, found 0");
  if (spec.draft.kind == speculate::DraftKind::none)
    p.field("spec.draft", "spec.draft: expected the draft to check, found none");
  if (spec.draft.kind == speculate::DraftKind::automatic)
    p.field("spec.draft",
            "spec.draft: expected the kind to check, found auto, which chooses by times");
  if (spec.fastest)
    p.field("spec.fastest",
            "spec.fastest: expected one draft to check; fastest chooses by times, so leave it out");
  if (spec.shape.is_auto())
    p.field("spec.shape.kind",
            "spec.shape.kind: expected the tree to check, found auto, which only sequoia-generate "
            "supports");
  if (spec.shape.beams() > 0)
    p.field("spec.shape.kind",
            "spec.shape.kind: texts are sampled, which beams do not support; set spec.shape=chain");
}

SpecCheck::SpecCheck(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(lowered_budgets(point.recipe)),
      pair_(recipe_.model, recipe_.run, recipe_.spec.engines(), cx, recipe_.cache),
      sampling_(settled_sampling(cx, recipe_.sampling, pair_.target())),
      target_name_(pair_.target().name),
      config_(pair_.target().config),
      exact_(pair_.compute() == DType::f32),
      rows_are_pure_(exact_ && pair_.device().kind == Device::Kind::cpu),
      tests_(speculate::drafter_kind(recipe_.spec.draft.kind).draws),
      tests_within_(!recipe_.spec.looks_up_within()) {
  tree_ = *speculate::given_tree(recipe_);
  const int text_tokens = this->text_tokens();
  if (has_prompts(recipe_.chat))
    prompts_ = decode::read_prompts(prompt_source(cx, recipe_.chat, true), pair_.target(), false,
                                    {.context = pair_.context(), .least_new = text_tokens});
  else
    prompts_.sequences =
        eval::varied_prompts(pair_.target(), recipe_.eval.n_prompts,
                             static_cast<uint64_t>(recipe_.run.seed), shortest_prompt_);
  prompts_.shared = 0;  // every text is read whole
  require_same(cx, prompts_);
  batch_ = decode::batch_size(recipe_.run, std::max(prompts_.sequences.size(), size_t{100}));
  if (pair_.device().kind == Device::Kind::cpu) {
    // Tests of levels see the logits of all nodes at once.
    const speculate::TreeRoom step = speculate::TreeRoom::of(
        recipe_.spec.nests() ? speculate::chain_tree(recipe_.longest_step(tree_)) : tree_);
    batch_ = speculate::target_needs(step, batch_, config_.vocab_size).logit_rows / step.nodes;
  }
  decode::SequenceRoom room = decode::room_for(prompts_, {.context = pair_.context(),
                                                          .max_tokens = recipe_.sampling.max_tokens,
                                                          .least_new = text_tokens,
                                                          .batch = batch_});
  speculate::check_gamma(recipe_, pair_.context(), prompts_);
  // Sampled texts fork from one prompt at a time.
  int64_t longest = 0;
  for (const eval::Ids& prompt : sampled_prompts())
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  room.batch = batch_;
  room.prefix = true;
  room.longest = std::max(room.longest, longest + text_tokens);
  room.total = std::max(room.total, longest + int64_t{batch_} * text_tokens);
  longest_ = static_cast<int>(room.longest);
  speculate::size_for(pair_, room, speculate::TreeRoom::of(tree_), recipe_.spec);
}

int SpecCheck::print_plan() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  note_lowered();
  const size_t n_prompts = sampled_prompts().size();
  // The same number after each prompt.
  const size_t n_sampled = static_cast<size_t>(recipe_.eval.texts) / n_prompts * n_prompts;
  const std::vector<double> temperatures = recipe_.eval.temperatures_of(sampling_);
  return cli::print_plan(
      cx_, pair_,
      fmt::format(
          "tree     {} nodes on {} levels\ntexts    {} greedy, {} sampled of {} tokens at each "
          "of {} temperatures, after {} prompts\n",
          tree_.size(), tree_.levels(), prompts_.sequences.size(), n_sampled, text_tokens(),
          temperatures.size(), n_prompts),
      {{"tree", speculate::tree_facts(tree_)},
       {"texts",
        {{"greedy", prompts_.sequences.size()},
         {"sampled", n_sampled},
         {"text_tokens", text_tokens()},
         {"temperatures", temperatures},
         {"prompts", n_prompts}}}});
}

bool SpecCheck::has_prompts(const recipe::Chat& chat) const {
  return !prompt_source(cx_, chat, true).empty();
}

SpecCheckRecipe SpecCheck::lowered_budgets(SpecCheckRecipe recipe) {
  if (has_prompts(recipe.chat)) return recipe;
  shortest_prompt_ = lower_budgets(recipe.cache, "cache", lowered_);
  if (recipe.spec.engines().own != nullptr)
    shortest_prompt_ = std::max(
        shortest_prompt_, lower_budgets(recipe.spec.draft.cache, "spec.draft.cache", lowered_));
  return recipe;
}

std::span<const eval::Ids> SpecCheck::sampled_prompts() const {
  const std::span<const eval::Ids> all = prompts_.sequences;
  return all.first(recipe_.eval.prompts_sampled(all.size()));
}

decode::GenerateSpec SpecCheck::how(double temperature, int max_tokens) const {
  recipe::Sampling sampling = sampling_;
  sampling.temperature = temperature;
  sampling.max_tokens = max_tokens;
  decode::GenerateSpec spec =
      decode::generate_spec(sampling, recipe_.run.seed, 0, config_, longest_);
  spec.max_active = batch_;
  return spec;
}

void SpecCheck::check_greedy(decode::Engine& target, speculate::Rounds& speculation) {
  const auto n = static_cast<int64_t>(prompts_.sequences.size());
  cli::Progress line(cx_.terminal, "greedy", static_cast<double>(2 * n), "texts");
  const eval::GreedyCheck c = eval::check_greedy(target, speculation, prompts_.sequences,
                                                 how(0, recipe_.sampling.max_tokens), shown(line));
  differences_ = c.differences;
  if (!differences_.empty() && !rows_are_pure_ && !kv::needs_of(recipe_.cache).reads_all)
    cx_.note(fmt::format(
        "batched rows round differently from single rows, so {} may select other tokens. These "
        "differences need not come from speculation. To decide, use -s model.compute=f32 --device "
        "cpu",
        recipe::yaml_text(recipe_.cache.kind)));
  const double gap = exact_ ? 0 : recipe_.eval.max_difference;
  verdicts_.push_back({.check = "greedy texts equal the target's",
                       .temperature = 0,
                       .texts = n,
                       .found = fmt::format("{} of {} texts equal, {} tokens, largest gap {:.3g}",
                                            c.texts_equal, c.texts, c.tokens, c.max_gap),
                       .limit = exact_ ? "all equal" : fmt::format("gap <= {:.3g}", gap),
                       .passed = exact_ ? c.texts_equal == c.texts : c.max_gap <= gap,
                       .details = {{"texts_equal", c.texts_equal},
                                   {"tokens", c.tokens},
                                   {"differences", c.differences.size()},
                                   {"max_gap", c.max_gap},
                                   {"gap_allowed", gap},
                                   {"max_tokens", recipe_.sampling.max_tokens}}});
  if (!is_lossy(speculation.accept_by())) return;
  const double agreement =
      c.tokens > 0 ? 1 - static_cast<double>(c.differences.size()) / static_cast<double>(c.tokens)
                   : 1;
  verdicts_.push_back(
      {.check = "acceptance rule is lossless",
       .temperature = 0,
       .texts = n,
       .found = fmt::format("{} is lossy: {:.2f} % of greedy tokens are the target's",
                            speculation.stats().rule, 100 * agreement),
       .limit = "a lossless rule",
       .passed = false,
       .details = {{"agreement", agreement}}});
}

void SpecCheck::check_matched(decode::Engine& target, speculate::Rounds& speculation) {
  for (const double t : recipe_.eval.temperatures_of(sampling_)) {
    const auto n = static_cast<int64_t>(prompts_.sequences.size());
    cli::Progress line(cx_.terminal, "match", static_cast<double>(2 * n), "texts");
    const int equal = eval::count_equal(target, speculation, prompts_.sequences,
                                        how(t, recipe_.sampling.max_tokens), shown(line));
    verdicts_.push_back({.check = "sampled texts equal the target's",
                         .temperature = t,
                         .texts = n,
                         .found = fmt::format("{} of {} texts equal", equal, n),
                         .limit = rows_are_pure_ ? "all equal" : "none: rows round differently",
                         .passed = !rows_are_pure_ || equal == n,
                         .details = {{"texts_equal", equal}}});
  }
}

void SpecCheck::check_distributions(decode::Engine& target, speculate::Rounds& speculation) {
  const std::vector<double> temperatures = recipe_.eval.temperatures_of(sampling_);
  const std::span<const eval::Ids> prompts = sampled_prompts();
  const int texts = recipe_.eval.texts / static_cast<int>(prompts.size());
  const auto once = [&](const recipe::Cache& c, const eval::Ids& prompt) {
    return decode::is_indexed_once(c, prompt.size());
  };
  // Texts by match share the random numbers of their temperatures.
  tests_.restart();
  tests_within_.restart();
  const bool is_seen = target.queue() == nullptr;
  const bool has_budget = recipe_.spec.engines().own != nullptr;
  std::vector<eval::Level> levels = {
      {"", is_seen ? &tests_ : nullptr, &speculation.stats(), has_budget}};
  if (speculation.stats_within() != nullptr)
    levels.push_back({"inner ", is_seen ? &tests_within_ : nullptr, speculation.stats_within()});
  std::vector<speculate::RoundStats> before;
  for (const eval::Level& level : levels) before.push_back(*level.stats);
  const auto n_texts = static_cast<int64_t>(prompts.size() * temperatures.size()) * texts;
  cli::Progress line(cx_.terminal, "sample", static_cast<double>(2 * n_texts), "texts");
  const std::vector<eval::DistributionCheck> checks = eval::check_distributions(
      target, speculation,
      {.prompts = prompts,
       .texts = texts,
       .temperatures = temperatures,
       .how = [&](double temperature) { return how(temperature, text_tokens()); },
       .adopts =
           [&](const eval::Ids& prompt) {
             return once(pair_.cache(), prompt) || once(pair_.self_cache(), prompt);
           }},
      shown(line));
  std::ranges::move(eval::sampled_verdicts(checks, temperatures, levels, recipe_.eval.significance),
                    std::back_inserter(verdicts_));
  inconclusive_ = eval::inconclusive(levels, before, n_texts);
  for (size_t i = 0; i < levels.size(); ++i) {
    const speculate::RoundStats s = levels[i].stats->since(before[i]);
    levels_.push_back({{"drafter", s.drafter},
                       {"verify", s.rule},
                       {"steps", s.rounds},
                       {"drafted", s.drafted},
                       {"accepted", s.accepted},
                       {"refused", s.refused}});
    cx_.note(
        fmt::format("sampled texts: {}speculation steps {}, draft tokens accepted {}, refused {}",
                    levels[i].name, s.rounds, s.accepted, s.refused));
  }
}

std::string_view SpecCheck::status() const {
  if (!std::ranges::all_of(verdicts_, &Verdict::passed)) return "differs";
  return inconclusive_ ? "inconclusive" : "proved";
}

void SpecCheck::note_lowered() {
  for (const auto& [key, value] : lowered_)
    cx_.note(fmt::format("{}={}, lowered for built-in prompts", key, value));
}

int SpecCheck::run() {
  note_sampling(cx_, recipe_.sampling, pair_.target());
  note_lowered();
  const speculate::ModelPair::Engines engines = pair_.load(cx_);
  decode::Engine& target = *engines.target;
  speculate::RoundOptions options;
  if (target.queue() == nullptr) options.on_verified = tests_.hook();
  const auto speculation = speculate::make_rounds(recipe_, engines, tree_, std::move(options),
                                                  {.on_verified = tests_within_.hook()});
  check_greedy(target, *speculation);
  if (speculation->accept_by() == AcceptBy::match) check_matched(target, *speculation);
  check_distributions(target, *speculation);
  const speculate::RoundStats& rounds = speculation->stats();
  cx_.note(fmt::format("{} speculation steps, {} of {} draft tokens accepted", rounds.rounds,
                       rounds.accepted, rounds.drafted));
  if (status() == "inconclusive")
    cx_.warn(fmt::format("inconclusive: {}; {}", inconclusive_->why, inconclusive_->remedy));
  write(rounds);
  return status() == "proved" ? 0 : exit_status(ErrorKind::numeric);
}

std::string SpecCheck::text(io::TableFormat format) const {
  using io::Align;
  io::Table table({{"check", Align::left},
                   {"temperature"},
                   {"texts"},
                   {"found", Align::left},
                   {"limit", Align::left},
                   {"verdict", Align::left}});
  for (const Verdict& v : verdicts_)
    table.add_row({v.check, v.temperature ? fmt::format("{:g}", *v.temperature) : "all",
                   fmt::format("{}", v.texts), v.found, v.limit, v.passed ? "pass" : "FAIL"});
  std::string text = table.render(format);
  if (differences_.empty()) return text;
  io::Table places({{"text"}, {"position"}, {"best token"}, {"found"}, {"gap"}});
  for (const eval::GreedyDifference& d : differences_)
    places.add_row({fmt::format("{}", d.text), fmt::format("{}", d.position),
                    fmt::format("{}", d.expected), fmt::format("{}", d.found),
                    fmt::format("{:.4g}", d.gap)});
  return text + "\n" + places.render(format);
}

Json SpecCheck::json(const speculate::RoundStats& rounds) const {
  Json checks = Json::array(), places = Json::array();
  for (const Verdict& v : verdicts_) {
    Json item = {{"check", v.check},
                 {"temperature", v.temperature ? Json(*v.temperature) : Json()},
                 {"texts", v.texts},
                 {"passed", v.passed}};
    item.update(v.details);
    checks.push_back(std::move(item));
  }
  for (const eval::GreedyDifference& d : differences_)
    places.push_back({{"text", d.text},
                      {"position", d.position},
                      {"best", d.expected},
                      {"found", d.found},
                      {"gap", d.gap}});
  const std::string_view status = this->status();
  Json lossless = status == "proved";
  if (status == "inconclusive") lossless = nullptr;
  Json lowered = Json::object();
  for (const auto& [key, value] : lowered_) lowered[key] = value;
  return {{"status", status},
          {"lossless", std::move(lossless)},
          {"why", status == "inconclusive" ? Json(inconclusive_->why) : Json()},
          {"levels", levels_},
          {"lowered", std::move(lowered)},
          {"target", target_name_},
          {"cache",
           {{"kind", recipe::yaml_text(recipe_.cache.kind)},
            {"place", recipe::yaml_text(recipe_.cache.place)}}},
          {"drafter", rounds.drafter},
          {"verify", rounds.rule},
          {"lossy", rounds.lossy},
          {"nodes", tree_.size()},
          {"device", pair_.device().name()},
          {"compute", exact_ ? "f32" : "bf16"},
          {"sampling", sampling_json(sampling_)},
          {"checks", std::move(checks)},
          {"differences", std::move(places)}};
}

void SpecCheck::write(const speculate::RoundStats& rounds) {
  cli::ResultFile result(recipe_.output.path, cx_.file_mode(), cx_.out);
  if (cx_.format() == "text" || cx_.format() == "md") {
    result.write(text(bench::table_format(cx_.format())));
  } else if (cx_.format() == "csv") {
    result.write(bench::csv_of(json(rounds)["checks"].get<std::vector<Json>>()));
  } else if (cx_.format() == "json") {
    result.write(json(rounds).dump() + "\n");
  } else {
    bench::Record record(cx_.info.name);
    record.group("recipe") = *point_.record;
    record.group("workload") = {{"n_prompts", prompts_.sequences.size()},
                                {"new_tokens", recipe_.sampling.max_tokens},
                                {"seed", recipe_.run.seed}};
    record.group("quality") = json(rounds);
    if (status() == "inconclusive") record.group("status") = status();
    result.write(record.line());
  }
  result.commit();
  cx_.out.flush();
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::SpecCheckRecipe&);
