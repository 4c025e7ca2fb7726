#include "decode/prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/quote.h"
#include "io/text_file.h"
#include "recipe/problems.h"
#include "text/chat_template.h"

namespace tandem::decode {
namespace {

using Ids = std::vector<int32_t>;

const text::Tokenizer& tokenizer_of(const ModelFiles& files) {
  if (files.tokenizer) return *files.tokenizer;
  throw input_error(files.name, "has no tokenizer: text prompts are not supported")
      .hint("give token ids with --prompt-ids, or {\"ids\": [...]} lines with --prompts");
}

/// Counting the tokens of texts up to here takes some hundredths of a second.
constexpr size_t kCountedWhole = size_t{256} << 10;

/// What all prompts of a run are read with.
struct Reader {
  const ModelFiles& files;
  const PromptRoom& room;
  const recipe::Chat chat_how = {};
  const std::optional<std::string> system = {};          // message that begins a chat
  std::optional<text::ChatTemplate> chat_template = {};  // loaded by the first chat
  std::string date = {};                                 // that a chat has

  const text::ChatTemplate& chat() {
    if (!chat_template) chat_template = chat_template_of(files, chat_how);
    return *chat_template;
  }
};

/// Ids of a text, which goes on after a saved state, or is a chat, unless BOS is added.
Ids encode(const Reader& reader, std::string_view text, bool add_bos, const std::string& where) {
  try {
    const PromptRoom& room = reader.room;
    const size_t most = text.size() <= kCountedWhole ? SIZE_MAX : room.most();
    text::LimitedIds limited =
        tokenizer_of(reader.files).encode_within(text, most, {.add_bos = add_bos});
    if (limited.fits) return std::move(limited.ids);
    const int64_t least = room.saved + static_cast<int64_t>(limited.at_least);
    const int64_t counted = room.saved + std::ssize(limited.ids);
    const std::string rest =
        least > counted ? fmt::format(", at least {} after them", least - counted) : "";
    throw input_error(
        "prompt", "has at least {} tokens ({} in the first {} of {} bytes{}); the context holds {}",
        least, counted, limited.bytes, text.size(), rest, room.context)
        .hint(room.remedy(least));
  } catch (Error& e) {
    e.add_context("in " + where);
    throw;
  }
}

Ids encode_chat(Reader& reader, const text::Chat& chat, const std::string& where) {
  const text::RenderedChat rendered = reader.chat().prompt(chat, where);
  if (rendered.has_date) reader.date = chat_settings(reader.chat_how).date;
  return encode(reader, rendered.text, false, where);
}

Ids encode_user_turn(Reader& reader, const std::string& content) {
  if (reader.system)
    return encode_chat(reader, {{"system", *reader.system}, {"user", content}}, "--chat");
  return encode_chat(reader, {{"user", content}}, "--chat");
}

void require_text(std::string_view text, const std::string& where) {
  if (text.empty())
    throw input_error(where, "the prompt is empty")
        .hint("give some text, or ids with --prompt-ids");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

/// Tokens that all sequences begin with; the last token of each stays its own, for its logits.
size_t common_prefix(const std::vector<Ids>& sequences) {
  if (sequences.size() < 2) return 0;
  size_t n = sequences[0].size();
  for (const Ids& s : sequences) {
    const size_t limit = std::min(n, s.size() - 1);
    n = 0;
    while (n < limit && s[n] == sequences[0][n]) ++n;
  }
  return n;
}

Ids ids_of(const io::Json& array, int vocab, const std::string& where) {
  if (!array.is_array())
    throw input_error(where, "expected a JSON array of token ids, found {}", io::describe(array));
  Ids ids;
  for (size_t i = 0; i < array.size(); ++i)
    ids.push_back(static_cast<int32_t>(
        io::as_int(array[i], "token id " + std::to_string(i), where, 0, vocab - 1)));
  if (ids.empty()) throw input_error(where, "the list is empty").hint("give at least one token id");
  return ids;
}

/// One beyond the embedding is named with its token, if it has one.
Ids ids_of(const io::Json& array, const ModelFiles& files, const std::string& where) {
  const int vocab = files.config.vocab_size;
  if (files.tokenizer && array.is_array())
    for (const io::Json& item : array)
      if (item.is_number_unsigned() && item < files.tokenizer->vocab_size())
        files.tokenizer->require_known(Ids{item.get<int32_t>()}, where);
  return ids_of(array, vocab, where);
}

/// One key says what kind of prompt a line is.
void check_keys(const io::OrderedJson& line, const std::string& where) {
  const std::vector<std::string_view> known = {"prompt", "ids", "messages"},
                                      all = {"prompt", "ids",   "messages", "adapter",
                                             "id",     "tools", "documents"};
  if (!line.is_object())
    throw input_error(where, "expected an object with one of the keys {}, found {}",
                      fmt::join(known, ", "), io::describe(io::Json(line)));
  for (const auto& [key, value] : line.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    if ((key == "tools" || key == "documents") && line.contains("messages")) continue;
    const std::string near = recipe::did_you_mean(key, all);
    throw input_error(where, "unknown key {}", io::quote(key))
        .hint(near.empty() ? fmt::format("use one of the keys {}, and optionally id and adapter",
                                         fmt::join(known, ", "))
                           : near);
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items())
    if (std::ranges::find(known, key) != known.end()) keys.push_back(key);
  if (keys.size() == 1) return;
  throw input_error(where, "expected one of the keys {}, found {}", fmt::join(known, ", "),
                    keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, " and ")));
}

PromptSet read_questions(const PromptSource& source, Reader& reader, bool continues) {
  if (!source.document && !continues)
    throw usage_error("--questions", "needs a document for the questions")
        .hint("give it with -f FILE, or model.state from an earlier run");
  const std::string document =
      source.document ? io::read_text_file(*source.document) : std::string();
  const std::string where = source.document ? source.document->string() : "--questions";
  PromptSet set;
  set.labels = lines_of(io::read_text_file(*source.questions));
  for (const std::string& q : set.labels)
    set.sequences.push_back(
        source.chat
            ? encode_user_turn(reader, document + "\n\n" + q)
            : encode(reader, document + "\n\nQuestion: " + q + "\nAnswer:", !continues, where));
  if (set.sequences.empty()) throw input_error(source.questions->string(), "holds no questions");
  for (const std::string& q : set.labels) set.asked.push_back(io::Json(q).dump());
  set.shared = common_prefix(set.sequences);
  return set;
}

constexpr const char* kAdapterKey = "adapter";
constexpr const char* kIdKey = "id";

/// JSON of the line's id, empty without one.
std::string id_of(const io::OrderedJson& line, const std::string& where) {
  if (!line.is_object() || !line.contains(kIdKey)) return {};
  const io::OrderedJson& id = line[kIdKey];
  if (!id.is_string() && !id.is_number())
    throw input_error(where, "key 'id': expected a string or a number, found {}",
                      io::describe(io::Json(id)));
  return id.dump();
}

/// JSON of what a line asks: its text or messages; empty for ids.
std::string asked_by(const io::OrderedJson& line) {
  for (const char* key : {"prompt", "messages"})
    if (line.contains(key)) return line[key].dump();
  return {};
}

/// The adapter that a line names, negative without one.
int adapter_of(const io::OrderedJson& line, const ModelFiles& files, const std::string& where) {
  if (!line.is_object()) return -1;  // which parse_prompt refuses
  const auto name = io::find_string(io::Json(line), kAdapterKey, where);
  if (!name) return -1;
  std::vector<std::string_view> known;
  for (const model::NamedAdapter& adapter : files.adapters) known.push_back(adapter.name);
  const auto it = std::ranges::find(known, *name);
  if (it != known.end()) return static_cast<int>(it - known.begin());
  const std::string near = recipe::did_you_mean(*name, known);
  throw input_error(where, "names adapter {}, which model.adapters does not list", io::quote(*name))
      .hint(!near.empty()   ? near
            : known.empty() ? "add it to model.adapters with a name: {name: ..., path: ...}"
                            : fmt::format("known adapters: {}", fmt::join(known, ", ")));
}

/// The prompt of one line, whose adapter has been read.
Ids read_line(Reader& reader, const io::OrderedJson& line, const std::string& where) {
  check_keys(line, where);
  if (line.contains("messages")) return encode_chat(reader, text::parse_chat(line, where), where);
  const io::Json plain(line);
  if (const io::Json* ids = io::find_array(plain, "ids", where))
    return ids_of(*ids, reader.files, where);
  const std::string& prompt = io::get_string(plain, "prompt", where);
  require_text(prompt, where);
  return encode(reader, prompt, true, where);
}

PromptSet read_lines(const PromptSource& source, Reader& reader) {
  PromptSet set;
  io::for_each_ordered_jsonl(io::read_text_file(*source.prompts), source.prompts->string(),
                             [&](const io::OrderedJson& line, const std::string& where) {
                               set.adapters.push_back(adapter_of(line, reader.files, where));
                               set.ids.push_back(id_of(line, where));
                               io::OrderedJson prompt = line;
                               if (prompt.is_object()) {
                                 prompt.erase(kAdapterKey);
                                 prompt.erase(kIdKey);
                               }
                               set.sequences.push_back(read_line(reader, prompt, where));
                               set.asked.push_back(asked_by(prompt));
                             });
  if (set.sequences.empty()) throw input_error(source.prompts->string(), "holds no prompts");
  return set;
}

PromptSet read_text(const PromptSource& source, Reader& reader, bool continues) {
  std::string text, where = "-p";
  if (source.document) {
    text = io::read_text_file(*source.document);
    where = source.document->string();
  }
  if (source.text) text += *source.text;
  require_text(text, where);
  PromptSet set;
  if (source.text) set.asked.push_back(io::Json(*source.text).dump());
  set.sequences.push_back(source.chat ? encode_user_turn(reader, text)
                                      : encode(reader, text, !continues, where));
  return set;
}

}  // namespace

const char* PromptRoom::remedy(int64_t n_tokens) const {
  if (model_context == 0)
    return "shorten the prompt, raise run.context, or use models with a longer context";
  return n_tokens > model_context
             ? "shorten the prompt, use a model with a longer context, or raise "
               "max_position_embeddings in config.json if the model was trained for more"
             : "raise run.context, or omit it";
}

PromptSet read_prompts(const PromptSource& source, const ModelFiles& files, bool continues,
                       const PromptRoom& room) {
  const int kinds = (source.text ? 1 : 0) + (source.ids ? 1 : 0) + (source.questions ? 1 : 0) +
                    (source.prompts ? 1 : 0);
  if (kinds > 1 || (source.document && (source.ids || source.prompts)))
    throw usage_error("prompt", "expected one source of prompts, found several")
        .hint("use one of -p, -f, -f with -p, -f with --questions, --prompt-ids, --prompts");
  if (source.chat && continues)
    throw usage_error("--chat", "cannot continue a saved state: the template begins a new chat");
  Reader reader{files, room, source.chat_how, source.system};
  PromptSet set;
  if (source.questions)
    set = read_questions(source, reader, continues);
  else if (source.prompts)
    set = read_lines(source, reader);
  else if (!source.ids)
    set = read_text(source, reader, continues);
  else
    set.sequences.push_back(
        ids_of(io::parse_json(io::read_text_file(*source.ids), source.ids->string()), files,
               source.ids->string()));
  set.date = reader.date;
  return set;
}

text::ChatSettings chat_settings(const recipe::Chat& chat) {
  text::ChatSettings settings{.choice = chat.template_path,
                              .date = chat.date.value_or(text::kChatDate),
                              .thinking = chat.thinking,
                              .tools = chat.tools,
                              .documents = chat.documents};
  try {
    const auto variables = recipe::ordered_json_of(chat.variables);
    for (const auto& [name, value] : variables.items()) {
      constexpr std::string_view kOwn[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
      if (std::ranges::find(kOwn, name) != std::end(kOwn))
        throw recipe_error("chat.variables", "'{}' is set by the chat and cannot be a variable",
                           name)
            .hint("set tools and documents with chat.tools and chat.documents, or in the chat");
      settings.variables.emplace_back(name, text::jinja::from_json(value));
    }
  } catch (const text::jinja::Failure& e) {
    throw recipe_error("chat.variables", "{}", e.what());
  }
  return settings;
}

text::ChatTemplate chat_template_of(const ModelFiles& files, const recipe::Chat& how) {
  return text::load_chat_template(files.folder, tokenizer_of(files), chat_settings(how));
}

std::vector<int32_t> parse_ids(std::string_view json, int vocab, const std::string& where) {
  return ids_of(io::parse_json(json, where), vocab, where);
}

std::vector<int32_t> parse_prompt(const io::OrderedJson& line, const ModelFiles& files,
                                  const std::string& where, const PromptRoom& room) {
  Reader reader{files, room};
  return read_line(reader, line, where);
}

std::string fingerprint_of(const PromptSet& prompts) {
  std::string bytes;
  for (const Ids& ids : prompts.sequences) {
    const auto n = static_cast<uint64_t>(ids.size());
    bytes.append(reinterpret_cast<const char*>(&n), sizeof n);
    bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  }
  return sha256_hex(bytes).substr(0, 16);
}

}  // namespace tandem::decode
