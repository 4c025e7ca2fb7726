#include "eval/own_answers.h"

#include <algorithm>

#include "eval/continuation.h"

namespace tandem::eval {
namespace {

std::vector<Prompts::Text> prompts_of(std::span<const OwnQuestion> questions) {
  std::vector<Prompts::Text> texts;
  for (const OwnQuestion& q : questions) texts.push_back({q.prompt, q.question});
  return texts;
}

size_t index_of_largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

/// Questions of one kind in the hands of one engine.
class OwnGroup {
 public:
  OwnGroup(const Panel::Member& member, std::span<const OwnQuestion> questions, const OwnSpec& spec)
      : engine_(*member.engine),
        policies_(member.policies),
        questions_(questions),
        spec_(spec),
        prompts_(engine_, prompts_of(questions)),
        next_(questions.size()),
        first_(questions.size()),
        outcomes_(questions.size()) {}

  std::vector<std::vector<Outcome>> run() {
    prompts_.for_each(
        spec_.protocols, [&](size_t i, const LogitRow& row) { take_first(i, row); },
        [&](Protocol protocol) {
          for (size_t cache = 0; cache < policies_.size(); ++cache)
            judge(static_cast<int>(cache),
                  {.policy = policies_[cache], .protocol = protocol, .score = Score::generated});
        });
    return std::move(outcomes_);
  }

 private:
  /// Takes the prediction after a question that was read densely.
  void take_first(size_t i, const LogitRow& row) {
    next_[i] = row.argmax;
    for (const Ids& choice : questions_[i].choices)
      first_[i].push_back(row.logprob(choice.front()));
  }

  void judge(int cache, const Outcome& empty) {
    const auto policy = static_cast<size_t>(empty.policy);
    if (!questions_.front().choices.empty())
      judge_choices(cache, empty);
    else if (policy < spec_.corrections.size() && spec_.corrections[policy].any())
      judge_corrected_texts(cache, spec_.corrections[policy], empty);
    else
      judge_texts(cache, empty);
  }

  bool ends(int32_t id) const {
    const auto& ends = engine_.config().eos_ids;
    return std::ranges::find(ends, id) != ends.end();
  }

  void add_text(size_t i, Ids written, Outcome outcome) {
    if (!written.empty() && ends(written.back())) written.pop_back();
    outcome.text = engine_.tokenizer()->decode(written, /*skip_special=*/true);
    outcome.correct = std::ranges::any_of(questions_[i].answers, [&](const std::string& answer) {
      return has_answer(spec_.match, outcome.text, answer);
    });
    outcomes_[i].push_back(std::move(outcome));
  }

  void judge_texts(int cache, Outcome outcome) {
    Continuation continuation(prompts_, cache);
    std::vector<Continuation::Part> parts;
    std::vector<Ids> written(questions_.size());
    if (outcome.protocol == Protocol::sparse)
      for (size_t i = 0; i < questions_.size(); ++i) parts.push_back({i, prompts_.question(i)});
    const std::vector<Ids> after = continuation.predict(parts);
    for (size_t i = 0; i < questions_.size(); ++i)
      written[i] = {after.empty() ? next_[i] : after[i].back()};
    while (true) {
      parts.clear();
      for (size_t i = 0; i < written.size(); ++i)
        if (!ends(written[i].back()) && std::ssize(written[i]) < spec_.max_tokens)
          parts.push_back({i, std::span(written[i]).last(1)});
      if (parts.empty()) break;
      const std::vector<Ids> best = continuation.predict(parts);
      for (size_t p = 0; p < parts.size(); ++p) written[parts[p].i].push_back(best[p][0]);
    }
    for (size_t i = 0; i < written.size(); ++i) {
      outcome.reads = continuation.reads(i);
      add_text(i, std::move(written[i]), outcome);
    }
  }

  /// Writes texts in rounds, question by question.
  void judge_corrected_texts(int cache, const Correction& by, Outcome outcome) {
    Corrected corrected(engine_, cache, by);
    decode::GenerateSpec how;
    how.max_tokens = spec_.max_tokens;
    how.stop_ids.assign(engine_.config().eos_ids.begin(), engine_.config().eos_ids.end());
    for (size_t i = 0; i < questions_.size(); ++i) {
      Ids text = questions_[i].prompt;
      text.insert(text.end(), questions_[i].question.begin(), questions_[i].question.end());
      Ids written =
          corrected.write({.prefix_slot = prompts_.slots()[i], .prefix = text, .tokens = {}}, how);
      outcome.rounds = corrected.counts();
      add_text(i, std::move(written), outcome);
    }
  }

  void judge_choices(int cache, Outcome outcome) {
    std::vector<std::vector<double>> logprobs(questions_.size());
    std::vector<std::optional<Reads>> reads(questions_.size());
    size_t most = 0;
    for (const OwnQuestion& q : questions_) most = std::max(most, q.choices.size());
    for (size_t choice = 0; choice < most; ++choice) {
      Continuation continuation(prompts_, cache);
      add_logprobs(continuation, choice, outcome.protocol, logprobs);
      for (size_t i = 0; i < questions_.size(); ++i)
        if (choice == questions_[i].right) reads[i] = continuation.reads(i);
    }
    for (size_t i = 0; i < questions_.size(); ++i) {
      const OwnQuestion& q = questions_[i];
      std::vector<double> by_byte = logprobs[i];
      for (size_t c = 0; c < by_byte.size(); ++c)
        by_byte[c] /= static_cast<double>(q.choice_bytes[c]);
      outcome.reads = reads[i];
      outcome.score = Score::acc_norm;
      outcome.correct = index_of_largest(by_byte) == q.right;
      Outcome acc = outcome;
      acc.score = Score::acc;
      acc.correct = index_of_largest(logprobs[i]) == q.right;
      acc.logprobs = std::move(logprobs[i]);
      outcomes_[i].push_back(std::move(acc));
      outcomes_[i].push_back(outcome);
    }
  }

  /// Appends the log-probability of one choice of each question that has it.
  void add_logprobs(Continuation& continuation, size_t choice, Protocol protocol,
                    std::vector<std::vector<double>>& logprobs) {
    std::vector<Ids> rows;
    std::vector<size_t> which;
    for (size_t i = 0; i < questions_.size(); ++i) {
      if (choice >= questions_[i].choices.size()) continue;
      const Ids& ids = questions_[i].choices[choice];
      Ids row = protocol == Protocol::sparse ? questions_[i].question : Ids();
      row.insert(row.end(), ids.begin(), ids.end() - 1);
      logprobs[i].push_back(protocol == Protocol::sparse ? 0 : first_[i][choice]);
      if (row.empty()) continue;
      rows.push_back(std::move(row));
      which.push_back(i);
    }
    std::vector<Continuation::Part> parts;
    for (size_t p = 0; p < rows.size(); ++p) parts.push_back({which[p], rows[p]});
    continuation.read(parts, [&](size_t p, size_t row, const LogitRow& logits) {
      // The last row predicts the choice's last token.
      const Ids& ids = questions_[which[p]].choices[choice];
      const size_t left = rows[p].size() - row;
      if (left <= ids.size()) logprobs[which[p]].back() += logits.logprob(ids[ids.size() - left]);
    });
  }

  decode::Engine& engine_;
  const std::vector<int>& policies_;  // of the panel, that the engine's caches are
  std::span<const OwnQuestion> questions_;
  const OwnSpec& spec_;
  Prompts prompts_;
  Ids next_;                                // most likely token after a dense question
  std::vector<std::vector<double>> first_;  // log-probabilities of the choices' first tokens there
  std::vector<std::vector<Outcome>> outcomes_;
};

}  // namespace

std::vector<std::vector<Outcome>> answer_own(const Panel& panel,
                                             std::span<const OwnQuestion> questions,
                                             const OwnSpec& spec) {
  std::vector<std::vector<Outcome>> outcomes(questions.size());
  for (const Panel::Member& member : panel.members()) {
    std::vector<std::vector<Outcome>> own = OwnGroup(member, questions, spec).run();
    for (size_t i = 0; i < own.size(); ++i)
      outcomes[i].insert(outcomes[i].end(), own[i].begin(), own[i].end());
  }
  return outcomes;
}

}  // namespace tandem::eval
