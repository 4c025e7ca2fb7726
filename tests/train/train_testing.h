#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "source_dir.h"
#include "text/tokenizer.h"
#include "train/data/dataset.h"
#include "train/data/epoch.h"

namespace tandem::test {

inline std::filesystem::path tiny_folder() { return source_dir() / "recipes/models/tiny-16m"; }

/// The tokenizer of tiny-16m: byte-level BPE with Llama 3's control tokens.
inline const text::Tokenizer& tiny_tokenizer() {
  static const std::unique_ptr<text::Tokenizer> tokenizer = text::load_tokenizer(tiny_folder());
  return *tokenizer;
}

inline train::Record instruction(std::string question, std::string answer, std::string input = {}) {
  return {train::Instruction{std::move(question), std::move(input), std::move(answer)}, "r"};
}

inline train::Dataset encoded(const std::vector<train::Record>& records,
                              const train::DataSettings& data = {},
                              const train::BatchSettings& batches = {}) {
  const train::SampleEncoder encoder(data, &tiny_tokenizer(), tiny_folder(),
                                     tiny_tokenizer().vocab_size());
  return {records, encoder, batches};
}

/// Samples of these numbers of rows: letters, one token each, of which the last is the answer.
inline train::Dataset of_rows(const std::vector<int>& rows,
                              const train::BatchSettings& batches = {}) {
  train::DataSettings data;
  data.template_name = train::TemplateName::custom;
  data.custom = {.prompt = "{instruction}", .prompt_with_input = {}, .answer = "{output}"};
  std::vector<train::Record> records;
  for (const int n : rows) {
    // BOS, n - 1 tokens of the prompt, and the answer: n rows.
    std::string prompt;
    for (int i = 1; i < n; ++i) prompt += "<|pad|>";
    records.push_back(instruction(prompt, "<|eot_id|>"));
  }
  return encoded(records, data, batches);
}

}  // namespace tandem::test
