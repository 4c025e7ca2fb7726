#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "recipe/fields.h"
#include "recipe/units.h"

namespace tandem::train {

/// The form of the records of a data file.
enum class RecordForm : uint8_t { automatic, instructions, chat, text, tokens };
constexpr std::array<std::string_view, 5> enum_names(RecordForm) {
  return {"auto", "instructions", "chat", "text", "tokens"};
}

/// How an instruction and its answer are written as one text.
enum class TemplateName : uint8_t { alpaca, s2ft_train, s2ft_eval, plain, chat, custom };
constexpr std::array<std::string_view, 6> enum_names(TemplateName) {
  return {"alpaca", "s2ft-train-compat", "s2ft-eval-compat", "plain", "chat", "custom"};
}

/// Which tokens the loss counts.
enum class Mask : uint8_t { completion_only, all };
constexpr std::array<std::string_view, 2> enum_names(Mask) { return {"completion_only", "all"}; }

/// A template that a recipe writes out. {instruction}, {input}, {output} and {eos} stand for the
/// record's fields and the end-of-text token; nothing else is replaced.
struct OwnTemplate {
  std::string prompt, prompt_with_input, answer = "{output}{eos}";

  template <class V>
  void fields(V& v) {
    v("prompt", prompt, "text before the answer, with {instruction} and optionally {eos}");
    v("prompt_with_input", prompt_with_input,
      "text before the answer for records with an input, with {instruction} and {input}. Empty = "
      "prompt, with instruction, blank line and input as {instruction}");
    v("answer", answer, "supervised text, with {output} and {eos}");
  }
};

/// Section `data` of training.
struct DataSettings {
  std::filesystem::path path, val_path;
  std::optional<int> val_size;
  RecordForm form = RecordForm::automatic;
  TemplateName template_name = TemplateName::alpaca;
  OwnTemplate custom;
  Mask mask = Mask::completion_only;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "JSON array or JSON lines of records, or a plain text file");
    v("form", form,
      "record format: instructions (instruction, input, output or prompt, completion), chat "
      "(messages, conversations), text, or tokens (ids, supervised). auto = by the keys of each "
      "record, or text if the file is not JSON");
    v("val_path", val_path, recipe::optional_input(),
      "validation data in the format of path, empty = none, or val_size");
    v("val_size", val_size, recipe::at_least(1).unit("samples"),
      "number of samples held out from path for validation, drawn by run.seed, null = none");
    v("template", template_name,
      "prompt template: alpaca, the S2FT program's for training or evaluation, plain (instruction, "
      "line break, output), chat (the chat template), or custom (data.custom). Chat records always "
      "use "
      "the chat template");
    v("custom", custom, "prompt texts of template: custom");
    v("mask", mask,
      "tokens that count in the loss: completion_only (answers) or all. Text records always count "
      "all tokens");
  }
  void check(recipe::Problems& p) const;
};

/// How to treat instructions and chats of more than train.max_tokens tokens.
enum class Overlong : uint8_t { truncate_right, drop, error };
constexpr std::array<std::string_view, 3> enum_names(Overlong) {
  return {"truncate_right", "drop", "error"};
}

/// How the samples of a step are laid into micro-batches.
enum class Batching : uint8_t { pad, varlen, pack };
constexpr std::array<std::string_view, 3> enum_names(Batching) { return {"pad", "varlen", "pack"}; }

/// The keys of section `train` that say how samples become micro-batches.
struct BatchSettings {
  recipe::TokenCount max_tokens{2048}, micro_tokens{16384};
  Overlong overlong = Overlong::truncate_right;
  Batching batching = Batching::varlen;
  int batch = 64;
  std::optional<int> micro_batch;
  bool drop_last = false;

  template <class V>
  void fields(V& v) {
    using recipe::between;
    v("max_tokens", max_tokens, between(2, 1 << 24).unit("tokens"),
      "largest sample length. Text is split into samples of this length");
    v("overlong", overlong, "treatment of instructions and chats longer than max_tokens");
    v("batch", batch, between(1, 1 << 20).unit("samples"), "samples per optimizer step");
    v("batching", batching,
      "batching of samples into micro-batches: varlen (in order, without padding), pack (filled as "
      "full as possible, without padding), or pad (padded to the longest)");
    v("micro_tokens", micro_tokens, between(2, 1 << 24).unit("tokens"),
      "maximum number of tokens in a micro-batch, including padding. Affects memory, not the "
      "result");
    v("micro_batch", micro_batch, recipe::at_least(1).unit("samples"),
      "maximum number of samples in a micro-batch. null = as many as fit in micro_tokens, up to "
      "batch");
    v("drop_last", drop_last, "omission of the last step of an epoch if it is not full");
  }
  void check(recipe::Problems& p) const;
  /// Of a micro-batch, at most.
  int most_samples() const { return std::min(batch, micro_batch.value_or(batch)); }
};

}  // namespace tandem::train
