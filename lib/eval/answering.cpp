#include "eval/answering.h"

#include <algorithm>

#include "decode/generate.h"

namespace tandem::eval {
namespace {

/// What ends an answer.
decode::GenerateSpec generate_spec(const decode::Engine& engine, AnswerSet set) {
  decode::GenerateSpec how;
  how.max_tokens = facts_of(set).max_tokens;
  how.stop_ids.assign(engine.config().eos_ids.begin(), engine.config().eos_ids.end());
  return how;
}

SetAnswer judge(const text::Tokenizer& tokenizer, AnswerSet set, const Question& question,
                const decode::GenerateSpec& how, Ids written) {
  SetAnswer answer;
  answer.n_tokens = static_cast<int64_t>(written.size());
  answer.ended =
      !written.empty() && std::ranges::find(how.stop_ids, written.back()) != how.stop_ids.end();
  if (answer.ended) written.pop_back();
  answer.text = tokenizer.decode(written, /*skip_special=*/true);
  answer.extracted = extract_answer(set, answer.text);
  answer.correct = is_correct(set, answer.extracted, question.answer);
  return answer;
}

/// One cache of an engine answers all questions.
std::vector<SetAnswer> answer_plainly(decode::Engine& engine, int cache, AnswerSet set,
                                      std::span<const Question> questions) {
  std::vector<decode::Request> requests;
  for (const Question& question : questions) requests.push_back({.tokens = question.prompt});
  std::vector<Ids> written(questions.size());
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent& token) {
    written[static_cast<size_t>(token.seq)].push_back(token.id);
  };
  const decode::GenerateSpec how = generate_spec(engine, set);
  ReadMeter meter(engine, cache, questions.size());
  decode::generate(engine, *decode::plain_decoder(engine, cache), requests, how, events);
  std::vector<SetAnswer> answers;
  for (size_t i = 0; i < questions.size(); ++i) {
    // The prompt's last row gives the first token, and the last token needs no row.
    const auto n_prompt = static_cast<int>(questions[i].prompt.size());
    meter.add(i, n_prompt, std::max(static_cast<int>(written[i].size()) - 1, 0));
    answers.push_back(judge(*engine.tokenizer(), set, questions[i], how, std::move(written[i])));
  }
  for (size_t i = 0; i < answers.size(); ++i) answers[i].reads = meter.of(i);
  return answers;
}

/// The same in rounds, question by question.
std::vector<SetAnswer> answer_corrected(decode::Engine& engine, int cache, const Correction& by,
                                        AnswerSet set, std::span<const Question> questions) {
  const decode::GenerateSpec how = generate_spec(engine, set);
  Corrected corrected(engine, cache, by);
  std::vector<SetAnswer> answers;
  for (const Question& question : questions) {
    Ids written = corrected.write({.tokens = question.prompt}, how);
    answers.push_back(judge(*engine.tokenizer(), set, question, how, std::move(written)));
    answers.back().rounds = corrected.counts();
  }
  return answers;
}

}  // namespace

std::vector<std::vector<SetAnswer>> answer_questions(const Panel& panel, AnswerSet set,
                                                     std::span<const Question> questions,
                                                     const std::vector<Correction>& corrections) {
  std::vector<std::vector<SetAnswer>> all(questions.size());
  for (const Panel::Member& member : panel.members())
    for (size_t i = 0; i < member.policies.size(); ++i) {
      const auto policy = static_cast<size_t>(member.policies[i]);
      const bool corrects = policy < corrections.size() && corrections[policy].any();
      const int cache = static_cast<int>(i);
      std::vector<SetAnswer> answers =
          corrects ? answer_corrected(*member.engine, cache, corrections[policy], set, questions)
                   : answer_plainly(*member.engine, cache, set, questions);
      for (size_t q = 0; q < questions.size(); ++q) {
        answers[q].policy = member.policies[i];
        all[q].push_back(std::move(answers[q]));
      }
    }
  return all;
}

decode::EngineSpec answer_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                      int prefill_chunk, int max_tokens, int group, int vocab) {
  speculate::RoundNeeds needs;
  for (const NamedPolicy& policy : policies)
    needs = needs.with(correction_needs(policy.spec, vocab));
  // On a GPU rounds are laid out while others are under way.
  const int tokens = needs.tokens + needs.ahead;
  const int64_t total = int64_t{group} * (max_tokens + tokens);
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk =
      std::max(static_cast<int>(std::min<int64_t>(prefill_chunk, total)), needs.rows);
  spec.max_seqs = spec.max_prompts = group;
  spec.max_extend_rows = std::max(needs.rows, group);
  spec.max_tokens = max_tokens + tokens;
  spec.total_tokens = total;
  spec.max_draft_rows = tokens;
  spec.max_tree_rows = needs.rows;
  spec.max_logit_rows = std::max(needs.logit_rows, 1);
  read_by(spec, policies);
  return spec;
}

}  // namespace tandem::eval
