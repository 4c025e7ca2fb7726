#include "tools/speculation/fastest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "io/quote.h"
#include "kv/policy.h"

namespace tandem::tools {
namespace {

using speculate::TreeRoom;

constexpr int kGammas[] = {4, 2, 8};  // in the order in which they are tried
/// Where the first chain of a draft takes as many times as long as the fastest way so far, the
/// draft's other ways are not tried.
constexpr double kHopeless = 1.5;
/// A cache that holds a larger share of the text than one half is no draft.
constexpr int64_t kLeastTimesBudget = 2;

/// A beginning of the text, which ends after as many tokens, or once the time is over, but not
/// before a few tokens.
struct Trial {
  int most_tokens, fewest_tokens;
  double seconds;
};
constexpr Trial kWarmUp{8, 2, 0.2}, kMeasured{48, 8, 0.5};

bool is_dense(const recipe::Cache& c) { return kv::needs_of(c).reads_all && !c.is_hosted(); }
bool may_drop_keys(const speculate::GenerateRecipe& r) { return !r.cache.is_hosted(); }
bool may_drop_channels(const speculate::GenerateRecipe& r) {
  return is_dense(r.cache) && !r.model.offload.any();
}

/// `key=value` of each key that has not its default.
/// draft    the default of spec.draft
std::vector<std::string> settings_of(speculate::GenerateRecipe recipe,
                                     const std::function<bool(std::string_view key)>& wanted,
                                     speculate::DraftKind draft) {
  speculate::GenerateRecipe defaults;
  defaults.spec.draft.kind = draft;
  const recipe::Field fields = recipe::fields_of(recipe), plain = recipe::fields_of(defaults);
  const std::vector<recipe::Key> keys = recipe::keys_of(fields), others = recipe::keys_of(plain);
  std::vector<std::string> settings;
  for (size_t i = 0; i < keys.size(); ++i)
    if (const std::string value = keys[i].field->value->yaml();
        wanted(keys[i].name) && value != others[i].field->value->yaml())
      settings.push_back(keys[i].name + "=" + value);
  return settings;
}

bool is_of(std::string_view key, std::initializer_list<std::string_view> sections) {
  return std::ranges::any_of(sections, [&](std::string_view s) { return key.starts_with(s); });
}

/// Milliseconds a token; none where the text ended at once.
std::optional<double> run_trial(cli::Context& cx, decode::Engine& target, decode::Decoder& decoder,
                                const decode::Request& request, decode::GenerateSpec how,
                                const Trial& trial) {
  how.max_tokens = std::min(how.max_tokens, trial.most_tokens);
  decode::GenerateReport report;
  const Stopwatch watch;
  bool is_over = false;
  decode::GenerateEvents events;
  events.interrupted = [&] {
    if (cli::agree_interrupted()) return true;
    is_over = report.tokens_decoded >= trial.fewest_tokens && watch.seconds() > trial.seconds;
    if (cx.group()) is_over = cx.group()->agree(is_over);
    return is_over;
  };
  try {
    decode::generate(target, decoder, {&request, 1}, how, events, report);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !is_over) throw;
  }
  if (report.tokens_decoded == 0) return {};
  const double ms = 1e3 * report.decode_s / static_cast<double>(report.tokens_decoded);
  return cx.group() ? cx.group()->agree(ms) : ms;
}

/// All of a prompt but its last token, read once for all ways.
class Beginning {
 public:
  Beginning(cli::Context& cx, decode::Engine& engine, std::span<const int32_t> prompt)
      : cache_(engine.cache()), tokens_(prompt.first(prompt.size() - 1)) {
    request_.tokens = {prompt.back()};
    if (tokens_.empty()) return;
    slot_ = cache_.create(cache_.all_readers());
    cli::Progress progress(cx.terminal, "prefill", static_cast<double>(tokens_.size()), "tok");
    const decode::SeqTokens part[] = {{slot_, tokens_, false}};
    engine.prefill(part, {},
                   [&](int64_t done) { return progress.go_on(static_cast<double>(done)); });
    request_.prefix_slot = slot_;
    request_.prefix = tokens_;
  }
  ~Beginning() {
    if (slot_ >= 0) cache_.release(slot_);
  }
  Beginning(const Beginning&) = delete;
  Beginning& operator=(const Beginning&) = delete;

  std::span<const int32_t> tokens() const { return tokens_; }
  const decode::Request& request() const { return request_; }

 private:
  kv::Cache& cache_;
  std::span<const int32_t> tokens_;
  int slot_ = -1;
  decode::Request request_;
};

}  // namespace

speculate::GenerateRecipe with_all_drafts(const speculate::GenerateRecipe& asked) {
  speculate::GenerateRecipe all = asked;
  speculate::Draft& draft = all.spec.draft;
  draft = {};
  draft.kind = asked.spec.draft.kind;
  draft.inner.path = asked.spec.draft.path;
  draft.inner.key = "spec.draft";  // for errors
  if (may_drop_keys(asked)) draft.cache.kind = recipe::CacheKind::snapkv;
  if (may_drop_channels(asked)) draft.sparse.kind = recipe::SparseKind::cats;
  return all;
}

TreeRoom room_of_all_drafts(const speculate::GenerateRecipe& all) {
  return TreeRoom::of(speculate::chain_tree(std::ranges::max(kGammas) + 1))
      .with(TreeRoom::of(*speculate::given_tree(all)));
}

std::string TriedWay::name() const {
  if (is_plain()) return "plain decoding";
  const auto is_draft = [](std::string_view key) { return is_of(key, {"spec."}); };
  return fmt::format("{}",
                     fmt::join(settings_of(recipe, is_draft, speculate::DraftKind::model), " "));
}

std::vector<TriedWay> ways_to_try(const speculate::GenerateRecipe& asked, int64_t longest) {
  speculate::GenerateRecipe base = asked;
  base.spec.fastest = false;
  base.spec.shape = {};
  base.spec.draft = {};
  std::vector<TriedWay> ways;
  const auto add = [&](speculate::Draft draft, speculate::DraftKind kind,
                       std::string why_not = {}) {
    draft.kind = kind;
    for (const int gamma : kGammas) {
      TriedWay& way = ways.emplace_back(TriedWay{.recipe = base, .why_not = why_not});
      way.recipe.spec.shape.gamma = {{gamma}};
      way.recipe.spec.draft = draft;
    }
  };
  using enum speculate::DraftKind;
  ways.push_back({.recipe = base});
  add({}, ngram);
  const speculate::Draft all = with_all_drafts(asked).spec.draft;
  if (may_drop_keys(asked)) {
    const int64_t budget = all.cache.snapkv.budget;
    speculate::Draft draft;
    draft.cache = all.cache;
    add(draft, self,
        longest >= kLeastTimesBudget * budget
            ? ""
            : fmt::format("KV budget of {} tokens is too large for a context of {}", budget,
                          longest));
  }
  if (may_drop_channels(asked)) {
    speculate::Draft draft;
    draft.sparse = all.sparse;
    add(draft, self);
  }
  if (asked.spec.draft.path.value.empty()) return ways;
  speculate::Draft small;
  small.path = asked.spec.draft.path;
  add(small, model);
  if (!asked.spec.shape.is_tree()) return ways;
  ways.push_back(ways.back());
  ways.back().recipe.spec.shape = asked.spec.shape;
  return ways;
}

std::unique_ptr<speculate::Rounds> rounds_of(const TriedWay& way,
                                             const speculate::ModelPair::Engines& engines,
                                             speculate::RoundOptions options) {
  const speculate::GenerateRecipe& recipe = way.recipe;
  decode::Engine& target = *engines.target;
  if (recipe.spec.draft.kind == speculate::DraftKind::ngram)
    return speculate::make_rounds(recipe, engines, *speculate::given_tree(recipe),
                                  std::move(options));
  const kv::Reading part =
      recipe.spec.draft.sparse.any() ? kv::Reading{.channels = 1} : kv::Reading{.keys = 1};
  const auto draft = recipe.spec.draft.kind == speculate::DraftKind::self
                         ? speculate::Reader(target, part)
                         : speculate::Reader(*engines.draft);
  options.verify = recipe.spec.verify;
  return speculate::model_rounds(target, draft, *speculate::given_tree(recipe), std::move(options));
}

const TriedWay& try_ways(cli::Context& cx, const speculate::ModelPair::Engines& engines,
                         std::span<const int32_t> prompt, const decode::GenerateSpec& how,
                         std::vector<TriedWay>& ways) {
  decode::Engine& target = *engines.target;
  const Beginning beginning(cx, target, prompt);
  cli::Progress progress(cx.terminal, "try", static_cast<double>(ways.size()), "ways");
  const TriedWay* best = &ways.front();
  bool is_hopeless = false;
  for (size_t i = 0; i < ways.size(); ++i) {
    TriedWay& way = ways[i];
    progress.update(static_cast<double>(i));
    const bool is_first = way.recipe.spec.shape.gamma.values.front() == kGammas[0];
    if (is_hopeless && !is_first && way.why_not.empty())
      way.why_not = fmt::format("the draft is slow with spec.shape.gamma={}", kGammas[0]);
    if (!way.why_not.empty()) continue;
    const std::unique_ptr<speculate::Rounds> rounds =
        way.is_plain() ? nullptr : rounds_of(way, engines);
    if (rounds) rounds->share(beginning.tokens());
    const std::unique_ptr<decode::Decoder> plain =
        way.is_plain() ? decode::plain_decoder(target) : nullptr;
    decode::Decoder& decoder = rounds ? static_cast<decode::Decoder&>(*rounds) : *plain;
    (void)run_trial(cx, target, decoder, beginning.request(), how, kWarmUp);
    way.ms = run_trial(cx, target, decoder, beginning.request(), how, kMeasured);
    if (!way.ms) way.why_not = "the text ends at once";
    if (!way.ms || !best->ms) continue;
    if (*way.ms < *best->ms) best = &way;
    if (is_first) is_hopeless = *way.ms > kHopeless * *best->ms;
  }
  return *best;
}

std::string tried_text(const std::vector<TriedWay>& ways, const TriedWay& best) {
  std::string text = "tried    ";
  const std::optional<double> plain = ways.front().ms;
  for (const TriedWay& way : ways) {
    if (&way != &ways.front()) text += "\n         ";
    text += &way == &best ? "* " : "  ";
    text += way.ms ? fmt::format("{:8.3f} ms per token, {:5.2f}x  ", *way.ms,
                                 plain.value_or(*way.ms) / *way.ms)
                   : fmt::format("{:31}", "not tried");
    text += way.name() + (way.why_not.empty() ? "" : ": " + way.why_not);
  }
  return text;
}

nlohmann::ordered_json tried_json(const std::vector<TriedWay>& ways, const TriedWay& best) {
  auto all = nlohmann::ordered_json::array();
  for (const TriedWay& way : ways) {
    nlohmann::ordered_json& j = all.emplace_back();
    j["way"] = way.name();
    j["best"] = &way == &best;
    if (way.ms) j["ms_per_token"] = *way.ms;
    if (!way.why_not.empty()) j["not_tried"] = way.why_not;
  }
  return all;
}

std::string command_to_repeat(const cli::Context& cx, const TriedWay& way) {
  std::vector<std::string> words = {way.is_plain() ? "pig-generate" : cx.info.name, "-m",
                                    cx.value("model").value_or(way.recipe.model.path.value)};
  for (const auto& [flag, name] : {std::pair{"file", "-f"},
                                   {"prompt", "-p"},
                                   {"prompt-ids", "--prompt-ids"},
                                   {"questions", "--questions"},
                                   {"prompts", "--prompts"},
                                   {"system", "--system"}})
    if (const auto value = cx.value(flag)) words.insert(words.end(), {name, *value});
  if (cx.is_set("chat")) words.push_back("--chat");
  const auto wanted = [&](std::string_view key) {
    if (key == "model.path" ||
        is_of(key, {"output.", "run.rank", "run.world_size", "run.rendezvous"}))
      return false;
    return !way.is_plain() || !is_of(key, {"spec."});
  };
  for (const std::string& setting : settings_of(way.recipe, wanted, speculate::DraftKind::none))
    words.insert(words.end(), {"-s", setting});
  for (std::string& word : words) word = io::shell_word(word);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace tandem::tools
