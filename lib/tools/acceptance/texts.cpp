#include "tools/acceptance/texts.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::tools {
namespace {

MeasuredTexts windows(const AcceptanceRecipe& r, const decode::ModelFiles& files) {
  const auto context = static_cast<int>(r.run.context.value);
  bench::BenchPrompts prompts = bench_prompts(r.data, files,
                                              {.context = context + r.bench.new_tokens,
                                               .batch = r.run.batch,
                                               .batches = r.bench.batches,
                                               .seed = static_cast<uint64_t>(r.run.seed)});
  MeasuredTexts texts{.source = prompts.source,
                      .batches = {},
                      .distinct = prompts.distinct,
                      .overlap = prompts.overlap};
  for (const auto& batch : prompts.batches) {
    texts.batches.emplace_back();
    for (const eval::Ids& window : batch)
      texts.batches.back().push_back({.prompt = {window.begin(), window.begin() + context},
                                      .next = {window.begin() + context, window.end()}});
  }
  return texts;
}

MeasuredTexts documents(const AcceptanceRecipe& r, const decode::ModelFiles& files) {
  if (files.tokenizer == nullptr)
    throw input_error(files.name, "documents need a tokenizer, but the model has none")
        .hint("set -s bench.prompts=prose");
  const eval::CaseGenerator generator(*files.tokenizer, r.bench.haystack,
                                      static_cast<uint64_t>(r.run.seed));
  MeasuredTexts texts{
      .source = r.bench.haystack.empty() ? "generated" : r.bench.haystack.filename().string(),
      .batches = {}};
  const auto length = static_cast<size_t>(r.run.context.value);
  for (int b = 0; b < r.bench.batches; ++b) {
    texts.batches.emplace_back();
    for (int i = 0; i < r.run.batch; ++i) {
      eval::Case c =
          generator.make(task_of(r.bench.prompts), length, static_cast<uint32_t>(texts.distinct++));
      c.haystack.insert(c.haystack.end(), c.question.begin(), c.question.end());
      const auto answer = static_cast<int>(c.answer.size());
      texts.batches.back().push_back(
          {.prompt = std::move(c.haystack), .next = std::move(c.answer), .answer = answer});
    }
  }
  return texts;
}

}  // namespace

MeasuredTexts measured_texts(const AcceptanceRecipe& r, const decode::ModelFiles& files,
                             const std::vector<eval::Ids>& given) {
  if (!r.has_given_prompts())
    return r.bench.prompts == PromptKind::prose ? windows(r, files) : documents(r, files);
  MeasuredTexts texts{.source = "given", .batches = {}, .distinct = static_cast<int>(given.size())};
  const auto batch = static_cast<size_t>(std::max(1, r.run.batch));
  for (size_t i = 0; i < given.size(); ++i) {
    if (i % batch == 0) texts.batches.emplace_back();
    texts.batches.back().push_back({.prompt = given[i], .next = {}});
  }
  return texts;
}

}  // namespace tandem::tools
