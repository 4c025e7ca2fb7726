#include "eval/lossless.h"

#include <algorithm>

#include "eval/tasks.h"

namespace tandem::eval {
namespace {

/// Tokens of all requests.
std::vector<Ids> texts_of(decode::Engine& target, decode::Decoder* speculation,
                          std::span<const decode::Request> requests,
                          const decode::GenerateSpec& how, const TextProgress& progress,
                          int64_t done) {
  std::vector<Ids> texts(requests.size());
  bool stopped = false;
  decode::GenerateEvents events;
  events.interrupted = [&] { return stopped; };
  events.on_token = [&](const decode::TokenEvent& e) {
    texts[static_cast<size_t>(e.seq)].push_back(e.id);
  };
  events.on_finish = [&](int, decode::Finish, const std::string&) {
    if (progress && !progress(++done)) stopped = true;
  };
  if (speculation != nullptr)
    decode::generate(target, *speculation, requests, how, events);
  else
    decode::generate(target, requests, how, events);
  return texts;
}

/// The target reads prompt and text again, one token a forward.
void rescore(decode::Engine& target, int text_index, const Ids& prompt, const Ids& text,
             GreedyCheck& check) {
  kv::Cache& cache = target.cache();
  const int slot = cache.create();
  const auto visit = [&](size_t position, const Tensor& logits) {
    const float* row = logits.as<float>();
    const auto best = std::max_element(row, row + logits.row_size()) - row;
    const int32_t found = text[position];
    if (best == found) return;
    const double gap = double{row[best]} - double{row[found]};
    check.max_gap = std::max(check.max_gap, gap);
    check.differences.push_back(
        {text_index, static_cast<int>(position), static_cast<int32_t>(best), found, gap});
  };
  const decode::SeqTokens begin[] = {{slot, prompt, true}};
  target.prefill(begin, [&](std::span<const size_t>, const Tensor& logits) {
    visit(0, target.on_host(logits));
  });
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const decode::SeqTokens next[] = {{slot, std::span(text).subspan(i, 1), true}};
    visit(i + 1, target.extend(next));
  }
  cache.release(slot);
}

/// Of the target alone, and of speculation.
std::pair<std::vector<Ids>, std::vector<Ids>> texts_of_both(decode::Engine& target,
                                                            decode::Decoder& speculation,
                                                            std::span<const Ids> prompts,
                                                            const decode::GenerateSpec& how,
                                                            const TextProgress& progress) {
  std::vector<decode::Request> requests;
  for (const Ids& ids : prompts)
    requests.push_back({.prefix_slot = -1, .prefix = {}, .tokens = ids});
  std::vector<Ids> plain = texts_of(target, nullptr, requests, how, progress, 0);
  const auto done = static_cast<int64_t>(plain.size());
  return {std::move(plain), texts_of(target, &speculation, requests, how, progress, done)};
}

std::vector<decode::Request> repeated(std::span<const int32_t> prompt, int prefix_slot, int texts) {
  return std::vector<decode::Request>(static_cast<size_t>(texts),
                                      {.prefix_slot = prefix_slot, .prefix = prompt, .tokens = {}});
}

}  // namespace

GreedyCheck check_greedy(decode::Engine& target, decode::Decoder& speculation,
                         std::span<const Ids> prompts, const decode::GenerateSpec& how,
                         const TextProgress& progress) {
  const auto [plain, texts] = texts_of_both(target, speculation, prompts, how, progress);
  GreedyCheck check;
  check.texts = static_cast<int>(prompts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    check.tokens += static_cast<int64_t>(texts[i].size());
    if (texts[i] == plain[i])
      ++check.texts_equal;
    else
      rescore(target, static_cast<int>(i), prompts[i], texts[i], check);
  }
  return check;
}

void DistributionCheck::add(const DistributionCheck& other) {
  texts += other.texts;
  prompts += other.prompts;
  if (tests.empty()) {
    tests = other.tests;
    return;
  }
  for (size_t i = 0; i < tests.size(); ++i) tests[i].test.add(other.tests[i].test);
}

double DistributionCheck::worst_p() const {
  double p = 1;
  for (const DistributionTest& t : tests) p = std::min(p, t.test.p);
  return p;
}

DistributionCheck check_distribution(decode::Engine& target, decode::Decoder& speculation,
                                     std::span<const int32_t> prompt, int prefix_slot, int texts,
                                     const decode::GenerateSpec& how,
                                     const TextProgress& progress) {
  const std::vector<decode::Request> requests = repeated(prompt, prefix_slot, texts);
  decode::GenerateSpec other = how;
  ++other.sampler.seed;
  const std::vector<Ids> samples[] = {
      texts_of(target, nullptr, requests, how, progress, 0),
      texts_of(target, &speculation, requests, other, progress, texts)};
  DistributionCheck check;
  check.texts = texts;
  check.prompts = 1;
  for (int n = 1; n <= 2; ++n)
    for (int first = n == 1 ? 1 : 0; first + n <= how.max_tokens; ++first) {
      OutcomeCounts counts;
      for (size_t s = 0; s < 2; ++s)
        for (const Ids& ids : samples[s]) {
          // A text that has ended is an outcome too.
          const size_t begin = std::min(static_cast<size_t>(first), ids.size());
          const size_t end = std::min(begin + static_cast<size_t>(n), ids.size());
          ++counts[Ids(ids.begin() + static_cast<long>(begin),
                       ids.begin() + static_cast<long>(end))][s];
        }
      check.tests.push_back({first, n, compare_samples(counts)});
    }
  return check;
}

std::vector<DistributionCheck> check_distributions(decode::Engine& target,
                                                   speculate::Rounds& speculation,
                                                   const SampledTexts& sampled,
                                                   const TextProgress& progress) {
  std::vector<DistributionCheck> checks(sampled.temperatures.size());
  int64_t before = 0;
  for (size_t i = 0; i < sampled.prompts.size(); ++i) {
    const Ids& prompt = sampled.prompts[i];
    const int slot = target.cache().create(target.cache().all_readers());
    const decode::SeqTokens begin[] = {{slot, prompt, false}};
    target.prefill(begin, {});
    if (sampled.adopts(prompt)) target.cache().adopt_prompt(slot);
    speculation.share(prompt);
    for (size_t t = 0; t < checks.size(); ++t, before += 2 * sampled.texts) {
      decode::GenerateSpec how = sampled.how(sampled.temperatures[t]);
      // A check takes two seeds, and no other check takes them.
      how.sampler.seed += 2 * static_cast<int64_t>(i + t * sampled.prompts.size());
      checks[t].add(
          check_distribution(target, speculation, prompt, slot, sampled.texts, how,
                             [&](int64_t done) { return !progress || progress(before + done); }));
    }
    target.cache().release(slot);
  }
  return checks;
}

int count_equal(decode::Engine& target, decode::Decoder& speculation, std::span<const Ids> prompts,
                const decode::GenerateSpec& how, const TextProgress& progress) {
  const auto [plain, texts] = texts_of_both(target, speculation, prompts, how, progress);
  int equal = 0;
  for (size_t i = 0; i < plain.size(); ++i) equal += plain[i] == texts[i] ? 1 : 0;
  return equal;
}

std::vector<Ids> varied_prompts(const decode::ModelFiles& files, int n, uint64_t seed,
                                int shortest) {
  constexpr size_t kLengths = 40;
  const auto least = static_cast<size_t>(shortest);
  const size_t bytes = 8 * (least + kLengths);  // more than as many tokens
  std::vector<Ids> prompts;
  for (int i = 0; i < n; ++i) {
    PhiloxStream rng(seed, static_cast<uint32_t>(i));
    const size_t length = least + static_cast<size_t>(i) % kLengths;
    Ids ids;
    if (files.tokenizer) {
      ids = files.tokenizer->encode(generate_prose(rng, bytes), {.add_bos = true});
      ids.resize(std::min(ids.size(), length));
    } else {
      const auto vocab = static_cast<uint32_t>(files.config.vocab_size);
      while (ids.size() < length) ids.push_back(static_cast<int32_t>(rng.below(vocab)));
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace tandem::eval
