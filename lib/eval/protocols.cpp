#include "eval/protocols.h"

#include <algorithm>

#include "base/check.h"
#include "eval/continuation.h"

namespace tandem::eval {
namespace {

using Part = Continuation::Part;

/// `first` are the predictions of the first answer tokens where those are known already; otherwise
/// the questions still have to go through the policy.
std::vector<bool> answers_forced(Continuation& continuation, std::span<const Case> cases,
                                 const Ids* first) {
  std::vector<bool> correct(cases.size());
  std::vector<Ids> rows(cases.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    correct[i] = first == nullptr || (*first)[i] == c.answer[0];
    if (!correct[i]) continue;
    if (first == nullptr) rows[i] = c.question;
    rows[i].insert(rows[i].end(), c.answer.begin(), c.answer.end() - 1);
    if (!rows[i].empty()) parts.push_back({i, rows[i]});
  }
  const std::vector<Ids> best = continuation.predict(parts);
  for (size_t p = 0; p < parts.size(); ++p) {
    const Case& c = cases[parts[p].i];
    // The rows that predict answer tokens are the last ones.
    const auto n = static_cast<std::ptrdiff_t>(c.answer.size() - (first == nullptr ? 0 : 1));
    correct[parts[p].i] = std::equal(best[p].end() - n, best[p].end(), c.answer.end() - n);
  }
  return correct;
}

/// Greedy decoding of each case for as long as its text is the beginning of the answer's.
std::vector<bool> answers_generated(const text::Tokenizer& tokenizer, Continuation& continuation,
                                    std::span<const Case> cases, const Ids* first) {
  std::vector<bool> correct(cases.size());
  std::vector<Ids> written(cases.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < cases.size(); ++i) parts.push_back({i, cases[i].question});
  if (first == nullptr) {
    const std::vector<Ids> best = continuation.predict(parts);
    for (size_t i = 0; i < cases.size(); ++i) written[i] = {best[i].back()};
  } else {
    for (size_t i = 0; i < cases.size(); ++i) written[i] = {(*first)[i]};
  }
  while (!parts.empty()) {
    std::vector<Part> going_on;
    for (const Part& part : parts) {
      const size_t i = part.i;
      // The answer as it reads after decoding: the space in front may be the tokenizer's own.
      const std::string wanted = tokenizer.decode(cases[i].answer);
      const std::string text = tokenizer.decode(written[i]);
      correct[i] = text == wanted;
      if (!correct[i] && !continuation.is_full(i) && text.size() < wanted.size() &&
          wanted.starts_with(text))
        going_on.push_back({i, std::span(written[i]).last(1)});
    }
    parts = std::move(going_on);
    const std::vector<Ids> best = continuation.predict(parts);
    for (size_t p = 0; p < parts.size(); ++p) written[parts[p].i].push_back(best[p][0]);
  }
  return correct;
}

/// The same in rounds, case by case: the answer's text is the beginning of what they write.
void judge_corrected(const Prompts& prompts, int cache, const Correction& by,
                     std::span<const Case> cases, Outcome empty,
                     std::vector<std::vector<Outcome>>& outcomes) {
  // Another division into tokens may take some more.
  constexpr size_t kMore = 4;
  decode::Engine& engine = prompts.engine();
  Corrected corrected(engine, cache, by);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    Ids text = c.haystack;
    text.insert(text.end(), c.question.begin(), c.question.end());
    decode::GenerateSpec how;
    how.max_tokens = static_cast<int>(c.answer.size() + kMore);
    const Ids written =
        corrected.write({.prefix_slot = prompts.slots()[i], .prefix = text, .tokens = {}}, how);
    const std::string wanted = engine.tokenizer()->decode(c.answer);
    empty.correct = false;
    for (size_t n = 1; n <= written.size() && !empty.correct; ++n)
      empty.correct = engine.tokenizer()->decode(std::span(written).first(n)) == wanted;
    empty.rounds = corrected.counts();
    outcomes[i].push_back(empty);
  }
}

/// A group of cases in the hands of one engine.
struct Group {
  const std::vector<int>& policies;  // of the panel, that its caches are
  std::span<const Case> cases;
  const CaseSpec& spec;
  Prompts prompts;
  std::vector<std::vector<Outcome>> outcomes;

  Group(const Panel::Member& member, std::span<const Case> c, const CaseSpec& s)
      : policies(member.policies),
        cases(c),
        spec(s),
        prompts(*member.engine, texts_of(c)),
        outcomes(c.size()) {}

  static std::vector<Prompts::Text> texts_of(std::span<const Case> cases) {
    std::vector<Prompts::Text> texts;
    for (const Case& c : cases) texts.push_back({c.haystack, c.question});
    return texts;
  }

  void judge(Protocol protocol, const Ids* first) {
    for (size_t cache = 0; cache < policies.size(); ++cache)
      for (const Score score : spec.scores) {
        const auto policy = static_cast<size_t>(policies[cache]);
        if (policy < spec.corrections.size() && spec.corrections[policy].any()) {
          judge_corrected(prompts, static_cast<int>(cache), spec.corrections[policy], cases,
                          {.policy = policies[cache], .protocol = protocol, .score = score},
                          outcomes);
          continue;
        }
        Continuation continuation(prompts, static_cast<int>(cache));
        const std::vector<bool> correct =
            score == Score::forced
                ? answers_forced(continuation, cases, first)
                : answers_generated(*prompts.engine().tokenizer(), continuation, cases, first);
        for (size_t i = 0; i < cases.size(); ++i)
          outcomes[i].push_back(
              {policies[cache], protocol, score, correct[i], continuation.reads(i)});
      }
  }

  void run() {
    Ids first(cases.size());
    prompts.for_each(
        spec.protocols, [&](size_t i, const LogitRow& row) { first[i] = row.argmax; },
        [&](Protocol protocol) {
          judge(protocol, protocol == Protocol::dense ? &first : nullptr);
        });
  }
};

}  // namespace

std::vector<std::vector<Outcome>> run_cases(const Panel& panel, std::span<const Case> cases,
                                            const CaseSpec& spec) {
  for (const Case& c : cases)
    TANDEM_CHECK(!c.haystack.empty() && !c.question.empty() && !c.answer.empty(),
                 "expected a case with haystack, question and answer");
  std::vector<std::vector<Outcome>> outcomes(cases.size());
  for (const Panel::Member& member : panel.members()) {
    Group group(member, cases, spec);
    group.run();
    for (size_t i = 0; i < cases.size(); ++i)
      outcomes[i].insert(outcomes[i].end(), group.outcomes[i].begin(), group.outcomes[i].end());
  }
  return outcomes;
}

decode::EngineSpec case_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int prefill_chunk, int max_tokens, int group, int vocab,
                                    int tail_tokens) {
  speculate::RoundNeeds needs;
  for (const NamedPolicy& policy : policies)
    needs = needs.with(correction_needs(policy.spec, vocab));
  // On a GPU rounds are laid out while others are under way.
  const int tokens = needs.tokens + needs.ahead;
  max_tokens += tokens;
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = std::max(prefill_chunk, tail_tokens);
  spec.max_seqs = 2 * group;  // each prefill and one fork of it
  spec.max_prompts = group;
  spec.max_tokens = max_tokens;
  spec.total_tokens = group * (int64_t{max_tokens} + tail_tokens);
  spec.max_draft_rows = tokens;
  spec.max_tree_rows = needs.rows;
  spec.max_logit_rows = std::max(64, needs.logit_rows);  // a group's rows come in pieces
  read_by(spec, policies);
  return spec;
}

}  // namespace tandem::eval
