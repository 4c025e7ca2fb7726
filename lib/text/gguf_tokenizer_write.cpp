#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "text/chat_template.h"
#include "text/gguf_tokenizer.h"

namespace tandem::text {
namespace {

namespace fs = std::filesystem;
using io::Json;

/// Texts whose ids differ between word rules: digits, cases, contractions, marks, spaces, scripts.
constexpr std::array kSamples = {
    "Hello, world! It's 1234567 or 3.14159e-10; we'LL see, don't they?",
    "HelloWorld camelCase SNAKE_CASE x1y22z333 $=<>^~| ++ a/b//c ...!!!\n\n\n  \t end \n",
    "   three spaces,\ttab\r\n\r\nnext    line \n \n   ",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b"
    "\u3061\u306f \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u00bd \u00b2 \u2167 \u0663",
    " leading space",
    "trailing space ",
    "def f(x):\n    return x  # comment\n"};

[[noreturn]] void refuse_tokenizer(const fs::path& folder, const std::string& what) {
  throw input_error(folder.string(), "its tokenizer cannot be written to a GGUF file: {}", what)
      .hint("write a model folder, or convert this one with llama.cpp");
}

/// Lists of a vocabulary, by id.
struct WrittenVocabulary {
  std::string model;
  std::vector<std::string> tokens, merges = {};
  std::vector<int32_t> types;
  std::vector<float> scores = {};
  bool ignores_merges = false;
  std::optional<bool> space_prefix = {};

  explicit WrittenVocabulary(int32_t rows)
      : tokens(static_cast<size_t>(rows)), types(static_cast<size_t>(rows), kUnused) {}

  /// Tokens beyond the embedding are left out.
  void set(int64_t id, const std::string& token, int32_t type) {
    if (id < 0 || id >= std::ssize(tokens)) return;
    tokens[static_cast<size_t>(id)] = token;
    types[static_cast<size_t>(id)] = type;
  }
};

/// Gives names to ids without a token, after the added tokens that only other files list.
void complete_vocabulary(WrittenVocabulary& v, const Tokenizer& tokenizer) {
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (v.types[i] == kUnused && v.tokens[i].empty() && !bytes.empty())
      v.set(id, std::string(bytes), kUserDefined);
    if (tokenizer.is_special(id) && v.types[i] != kUnknown) v.types[i] = kControl;
    if (v.tokens[i].empty()) v.tokens[i] = fmt::format("[PAD{}]", i);
  }
}

WrittenVocabulary read_byte_level(const Json& root, const std::string& where, int32_t rows) {
  const Json& model = io::get_object(root, "model", where);
  WrittenVocabulary v(rows);
  v.model = "gpt2";
  v.ignores_merges = io::find_bool(model, "ignore_merges", where).value_or(false);
  for (const auto& [piece, id] : io::get_object(model, "vocab", where).items())
    v.set(id.get<int64_t>(), piece, kNormal);
  for (const Json& rule : io::get_array(model, "merges", where))
    v.merges.push_back(rule.is_array() ? fmt::format("{} {}", rule.at(0).get<std::string>(),
                                                     rule.at(1).get<std::string>())
                                       : io::as_string(rule, "a merge", where));
  if (const Json* added = io::find_array(root, "added_tokens", where))
    for (const Json& token : *added)
      v.set(io::get_int(token, "id", where), io::get_string(token, "content", where),
            io::find_bool(token, "special", where).value_or(false) ? kControl : kUserDefined);
  return v;
}

/// Reads the fields of a serialized message of protocol buffers, which have been checked before.
class MessageFields {
 public:
  explicit MessageFields(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        value = varint();
        return true;
      case 1:
        text = take(8);
        return true;
      case 2:
        text = take(varint());
        return true;
      case 5:
        text = take(4);
        return true;
      default:
        rest_ = {};
        return false;
    }
  }
  float real() const {
    float x = 0;
    std::memcpy(&x, text.data(), std::min(text.size(), sizeof(x)));
    return x;
  }

  int number = 0;
  uint64_t value = 0;     // if it is a varint
  std::string_view text;  // if it is bytes or a fixed number

 private:
  uint64_t varint() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      n |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    return n;
  }
  std::string_view take(uint64_t n) {
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
};

/// MessageFields of SentencePiece's ModelProto, by its sentencepiece_model.proto.
WrittenVocabulary read_pieces(const fs::path& path, int32_t rows) {
  const std::string bytes = io::read_file(path);
  WrittenVocabulary v(rows);
  v.model = "llama";
  v.scores.assign(static_cast<size_t>(rows), -1e4f);
  v.space_prefix = true;
  uint64_t algorithm = 1;  // unigram
  int64_t id = 0;
  for (MessageFields model(bytes); model.next();) {
    MessageFields part(model.text);
    if (model.number == 1) {
      std::string piece;
      float score = 0;
      auto type = static_cast<int32_t>(kNormal);
      while (part.next()) {
        if (part.number == 1) piece = part.text;
        if (part.number == 2) score = part.real();
        if (part.number == 3) type = static_cast<int32_t>(part.value);
      }
      // Readers of GGUF look for these tokens in raw text.
      if (type == kUserDefined) piece = io::replace_all(piece, "\u2581", " ");
      if (id < rows) v.scores[static_cast<size_t>(id)] = score;
      v.set(id++, piece, type);
    } else if (model.number == 2) {
      while (part.next())
        if (part.number == 3) algorithm = part.value;
    } else if (model.number == 3) {
      while (part.next())
        if (part.number == 3) v.space_prefix = part.value != 0;
    }
  }
  if (algorithm != 2) refuse_tokenizer(path.parent_path(), "tokenizer.model holds no BPE");
  return v;
}

/// Prefers tokenizer.json, as load_tokenizer does, but reads SentencePiece's scores.
WrittenVocabulary read_vocabulary(const fs::path& folder, int32_t rows) {
  const fs::path json = folder / "tokenizer.json", pieces = folder / "tokenizer.model";
  if (fs::exists(json)) {
    const std::string where = json.string();
    const Json root = io::parse_json(io::read_file(json), where);
    const Json& model = io::get_object(root, "model", where);
    if (io::find_string(model, "type", where).value_or("BPE") == "BPE" &&
        !io::find_bool(model, "byte_fallback", where).value_or(false))
      return read_byte_level(root, where, rows);
  }
  if (fs::exists(pieces)) return read_pieces(pieces, rows);
  refuse_tokenizer(folder,
                   fs::exists(json)
                       ? "tokenizer.json holds no byte-level BPE, and tokenizer.model is missing"
                       : "neither tokenizer.json nor tokenizer.model is there");
}

void put_vocabulary(io::GgufWriter& to, const WrittenVocabulary& v, std::string_view pre,
                    const Tokenizer& tokenizer, std::span<const int> ends) {
  const auto key = [](std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); };
  to.text(key("model"), v.model);
  to.text(key("pre"), pre);
  to.texts(key("tokens"), v.tokens);
  if (!v.scores.empty()) to.reals(key("scores"), v.scores);
  to.ints(key("token_type"), v.types);
  if (v.scores.empty()) to.texts(key("merges"), v.merges);
  if (const auto bos = tokenizer.bos_id()) to.number(key("bos_token_id"), *bos);
  std::vector<int> ids;
  const auto add = [&](int id) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  if (const auto eos = tokenizer.eos_id()) add(*eos);
  for (const int id : ends) add(id);
  add_end_ids(to, ids);
  to.truth(key("add_bos_token"), !tokenizer.prefix().empty());
  if (v.space_prefix) to.truth(key("add_space_prefix"), *v.space_prefix);
}

/// The ids of a text; none where it has a character without a token.
std::optional<std::vector<int32_t>> ids_in(const Tokenizer& tokenizer, const char* text) {
  try {
    return tokenizer.encode(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// True if a GGUF file with this vocabulary gives the ids of a tokenizer.
bool gives_ids(const WrittenVocabulary& v, std::string_view pre, const Tokenizer& tokenizer,
               std::span<const int> ends) {
  io::GgufWriter writer;
  writer.text("general.architecture", "llama");
  put_vocabulary(writer, v, pre, tokenizer, ends);
  const std::string bytes = writer.header();
  std::vector<std::string> warnings;
  std::unique_ptr<Tokenizer> written;
  try {
    written = tokenizer_from_gguf(
        io::Gguf::parse(std::as_bytes(std::span(bytes)), "the new tokenizer"), warnings);
  } catch (const Error&) {
    return false;
  }
  return std::ranges::all_of(kSamples, [&](const char* text) {
    return ids_in(*written, text) == ids_in(tokenizer, text);
  });
}

}  // namespace

void add_end_ids(io::GgufWriter& to, std::span<const int> ids) {
  constexpr std::array kEnds = {"eos", "eot", "eom"};
  for (size_t i = 0; i < std::min(ids.size(), kEnds.size()); ++i)
    to.number(fmt::format("tokenizer.ggml.{}_token_id", kEnds[i]), ids[i]);
}

void add_tokenizer(io::GgufWriter& to, const fs::path& folder, const Tokenizer& tokenizer,
                   int32_t rows, std::span<const int> ends) {
  WrittenVocabulary v = read_vocabulary(folder, rows);
  complete_vocabulary(v, tokenizer);
  const std::vector<std::string_view> rules = v.scores.empty()
                                                  ? gguf_word_rules(v.ignores_merges)
                                                  : std::vector<std::string_view>{"default"};
  const auto rule = std::ranges::find_if(
      rules, [&](std::string_view pre) { return gives_ids(v, pre, tokenizer, ends); });
  if (rule == rules.end())
    refuse_tokenizer(folder,
                     fmt::format("sample texts get other ids with each of the known rules: {}",
                                 fmt::join(rules, ", ")));
  put_vocabulary(to, v, *rule, tokenizer, ends);
  if (const auto chat = default_chat_template(folder)) to.text("tokenizer.chat_template", *chat);
}

}  // namespace tandem::text
