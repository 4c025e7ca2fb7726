#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "text/tokenizer.h"
#include "train/data/prompt_template.h"
#include "train/data/records.h"
#include "train/data/sample.h"
#include "train/data/settings.h"

namespace tandem::train {

/// Encodes a text. No token lies across the border of an answer, so a prompt has the ids that it
/// has when it is generated from.
/// prefixed  the tokenizer's prefix (BOS) is put in front of a text that does not begin with it
/// errors    kind input: as Tokenizer::encode
Sample encode_text(const text::Tokenizer& tokenizer, const text::RenderedChat& text, Mask mask,
                   bool prefixed);

/// Turns records into samples of a model.
class SampleEncoder {
 public:
  /// tokenizer     null: records must be tokens. It is kept, not owned.
  /// model_folder  of the chat template; empty: there is none
  SampleEncoder(const DataSettings& settings, const text::Tokenizer* tokenizer,
                const std::filesystem::path& model_folder, int32_t vocab_size,
                text::ChatSettings chat = {});

  /// The whole record, of any length. Texts begin with prefix().
  /// errors   kind input at record.where: as RecordWriter::write and Tokenizer::encode; text for a
  ///          model without tokenizer; ids beyond the vocabulary
  Sample encode(const Record& record) const;

  /// The ids of RecordWriter::prompt: those that encode has before the answer.
  /// errors   as encode
  std::vector<int32_t> encode_prompt(const Instruction& question, const std::string& where) const;

  const std::vector<int32_t>& prefix() const;
  /// Whether BOS stands twice in front.
  bool begins_twice(std::span<const int32_t> ids) const;
  /// Whether generation can stop at a token.
  bool is_control(int32_t id) const { return tokenizer_ == nullptr || tokenizer_->is_special(id); }

 private:
  Sample checked(const Record& record) const;
  /// Calls `encoded(writer)`; its errors name the record.
  template <class Encoded>
  auto at(const std::string& where, const Encoded& encoded) const;

  const text::Tokenizer* tokenizer_;
  std::unique_ptr<RecordWriter> writer_;  // null without tokenizer
  Mask mask_;
  int32_t vocab_size_;
};

}  // namespace tandem::train
