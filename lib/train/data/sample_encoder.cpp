#include "train/data/sample_encoder.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::train {

Sample encode_text(const text::Tokenizer& tokenizer, const text::RenderedChat& text, Mask mask,
                   bool prefixed) {
  std::vector<size_t> cuts;
  for (const text::TextSpan& span : text.answers) cuts.insert(cuts.end(), {span.begin, span.end});
  text::CutIds encoded =
      tokenizer.encode_cut(text.text, cuts, {.add_bos = false, .parse_special = true});

  Sample sample{.ids = std::move(encoded.ids), .supervised = {}};
  size_t shift = 0;
  const auto& prefix = tokenizer.prefix();
  const bool has_prefix = sample.ids.size() >= prefix.size() &&
                          std::equal(prefix.begin(), prefix.end(), sample.ids.begin());
  if (prefixed && !has_prefix) {
    sample.ids.insert(sample.ids.begin(), prefix.begin(), prefix.end());
    shift = prefix.size();
  }
  const auto add = [&](size_t begin, size_t end) {
    const TokenSpan span{std::max(static_cast<int32_t>(begin), 1), static_cast<int32_t>(end)};
    if (span.begin < span.end) sample.supervised.push_back(span);
  };
  if (mask == Mask::all && !text.answers.empty())
    add(0, sample.ids.size());
  else
    for (size_t i = 0; i < encoded.before.size(); i += 2)
      add(encoded.before[i] + shift, encoded.before[i + 1] + shift);
  return sample;
}

SampleEncoder::SampleEncoder(const DataSettings& settings, const text::Tokenizer* tokenizer,
                             const std::filesystem::path& model_folder, int32_t vocab_size,
                             text::ChatSettings chat)
    : tokenizer_(tokenizer),
      writer_(tokenizer != nullptr ? std::make_unique<RecordWriter>(settings, *tokenizer,
                                                                    model_folder, std::move(chat))
                                   : nullptr),
      mask_(settings.mask),
      vocab_size_(vocab_size) {}

const std::vector<int32_t>& SampleEncoder::prefix() const {
  static const std::vector<int32_t> none;
  return tokenizer_ != nullptr ? tokenizer_->prefix() : none;
}

template <class Encoded>
auto SampleEncoder::at(const std::string& where, const Encoded& encoded) const {
  if (writer_ == nullptr)
    throw input_error(where, "text needs a tokenizer, but the model has none")
        .hint(
            "give token ids, {\"ids\": [...], \"supervised\": [[begin, end]]} a line, or a model "
            "with a tokenizer");
  try {
    return encoded(*writer_);
  } catch (Error& e) {
    if (e.where() != where) e.add_context("in " + where);
    throw;
  }
}

Sample SampleEncoder::encode(const Record& record) const {
  if (std::holds_alternative<Sample>(record.content)) return checked(record);
  return at(record.where, [&](const RecordWriter& writer) {
    return encode_text(*tokenizer_, writer.write(record), mask_, !writer.is_chat(record));
  });
}

std::vector<int32_t> SampleEncoder::encode_prompt(const Instruction& question,
                                                  const std::string& where) const {
  return at(where, [&](const RecordWriter& writer) {
    text::RenderedChat prompt;
    prompt.text = writer.prompt(question, where);
    return encode_text(*tokenizer_, prompt, mask_, !writer.is_chat({question, where})).ids;
  });
}

bool SampleEncoder::begins_twice(std::span<const int32_t> ids) const {
  const auto bos = tokenizer_ != nullptr ? tokenizer_->bos_id() : std::nullopt;
  return bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos;
}

Sample SampleEncoder::checked(const Record& record) const {
  Sample sample = std::get<Sample>(record.content);
  for (const int32_t id : sample.ids)
    if (id >= vocab_size_)
      throw input_error(record.where, "has the token id {}, but the model has {} tokens", id,
                        vocab_size_)
          .hint("the ids come from another model's tokenizer");
  if (mask_ == Mask::all && sample.ids.size() > 1)
    sample.supervised = {{1, static_cast<int32_t>(sample.ids.size())}};
  return sample;
}

}  // namespace tandem::train
