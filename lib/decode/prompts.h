#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode/model_files.h"
#include "io/json_fwd.h"
#include "text/chat_template.h"

namespace tandem::decode {

/// Where a tool's prompts come from, as its user said it. Paths may be "-".
struct PromptSource {
  std::optional<std::string> text;                 // -p
  std::optional<std::filesystem::path> document;   // -f: comes before the text or the questions
  std::optional<std::filesystem::path> ids;        // --prompt-ids: a JSON array, used as it is
  std::optional<std::filesystem::path> questions;  // --questions: one a line, about the document
  std::optional<std::filesystem::path> prompts;    // --prompts: JSONL
  bool chat = false;
  std::optional<std::string> system;  // message that begins a chat
  recipe::Chat chat_how;              // how chats are written

  bool empty() const { return !text && !document && !ids && !questions && !prompts; }
};

struct PromptSet {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::string> labels;  // the question of each sequence; empty for single prompts
  std::vector<std::string> ids;     // of lines: JSON of their key id; empty: none, also as a whole
  std::vector<std::string> asked;   // JSON of what each line or question asks; empty as ids
  std::vector<int> adapters;        // of each sequence, of ModelFiles::adapters; negative: none; or
                                    // empty: of all
  size_t shared = 0;                // tokens that all sequences begin with and that are kept once
  std::string date;                 // that a chat template wrote; empty: none
};

/// The tokens that a prompt may have. A long text that has more is refused while it is read; the
/// tokens of a short one are counted to the end, for who has to shorten it.
struct PromptRoom {
  int64_t context = INT64_MAX;  // tokens of a sequence
  int64_t model_context = 0;    // tokens that the model was made for; 0: a run of several models
  int64_t saved = 0;            // tokens of a state that prompts continue
  int64_t least_new = 0;        // new tokens that must fit after every prompt

  /// Tokens of a prompt at most.
  size_t most() const {
    return static_cast<size_t>(std::max<int64_t>(0, context - saved - least_new));
  }
  /// What to do about a prompt that has `n_tokens`, those of the state included.
  const char* remedy(int64_t n_tokens) const;
};

/// Differs where tokens do; 16 hex digits.
std::string fingerprint_of(const PromptSet& prompts);

/// Reads and encodes all prompts. Questions are written as "\n\nQuestion: Q\nAnswer:" after the
/// document, or with `chat` as a user turn that ends with the question; each is encoded whole, so
/// that sharing the document never changes a token.
/// Lines of a JSONL file: {"prompt": "text"}, {"ids": [1, 2]} or {"messages": [...]} with "tools"
/// and "documents" (text::parse_chat). "adapter" may name one of files.adapters; "id" is a text or
/// a number that results repeat.
/// continues  the prompts go on after a saved state: no BOS, no chat template
/// errors   kind usage: sources that do not go together; kind input: missing, empty or malformed
///          prompts, ids outside the vocabulary, text for a model without tokenizer, a text of over
///          256 KiB that has more tokens than there is room for; as text::ChatTemplate
PromptSet read_prompts(const PromptSource& source, const ModelFiles& files, bool continues,
                       const PromptRoom& room = {});

/// Section `chat` of a recipe, as the template takes it.
/// errors   kind recipe at chat.variables: an integer beyond 64 bits, or a name that the chat itself gives
text::ChatSettings chat_settings(const recipe::Chat& chat);

/// The template that chats of a run are written in.
/// errors   kind input: no tokenizer; as text::load_chat_template and chat_settings
text::ChatTemplate chat_template_of(const ModelFiles& files, const recipe::Chat& how);

/// A JSON array of token ids in [0, vocab).
/// errors   kind input at `where`
std::vector<int32_t> parse_ids(std::string_view json, int vocab, const std::string& where);

/// The prompt of one line of a JSONL prompts file.
std::vector<int32_t> parse_prompt(const io::OrderedJson& line, const ModelFiles& files,
                                  const std::string& where, const PromptRoom& room = {});

}  // namespace tandem::decode
