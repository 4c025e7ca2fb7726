// Where a model folder keeps its chat templates.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/quote.h"
#include "io/text_file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::text {
namespace {

namespace fs = std::filesystem;
using io::Json;

struct Source {
  std::string jinja, where;
};
using Sources = std::map<std::string, Source>;  // by name

std::optional<Json> read_object(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  Json object =
      io::parse_json(io::read_text_file(path), path.string(), {.allow_duplicate_keys = true});
  if (!object.is_object())
    throw input_error(path.string(), "expected a JSON object, found {}", io::describe(object));
  return object;
}

/// A text, or several: {name: text} or [{"name", "template"}].
Sources named_templates(const Json& object, const fs::path& path) {
  const auto value = object.find("chat_template");
  if (value == object.end() || value->is_null()) return {};
  const std::string where = path.string();
  Sources found;
  const auto add = [&](const std::string& name, const Json& text) {
    found[name] = {io::as_string(text, "chat template " + io::quote(name), where),
                   fmt::format("{}: chat_template{}", where, name == "default" ? "" : " " + name)};
  };
  if (value->is_string()) {
    add("default", *value);
  } else if (value->is_object()) {
    for (const auto& [name, text] : value->items()) add(name, text);
  } else if (value->is_array()) {
    for (const Json& entry : *value)
      add(io::get_string(entry, "name", where), io::get_string(entry, "template", where));
  } else {
    throw input_error(where, "key 'chat_template': expected text or named texts, found {}",
                      io::describe(*value));
  }
  return found;
}

/// Templates in the metadata of a GGUF file.
Sources gguf_templates(const fs::path& path) {
  const io::Gguf file = io::Gguf::open(path);
  const std::string key = "tokenizer.chat_template";
  Sources found;
  const auto add = [&](const std::string& name, const std::string& own_key) {
    if (const auto text = file.find_string(own_key))
      found[name] = {std::string(*text), fmt::format("{}: {}", path.string(), own_key)};
  };
  add("default", key);
  for (const std::string_view name : file.strings(key + "s"))
    add(std::string(name), fmt::format("{}.{}", key, name));
  return found;
}

Sources templates_of(const fs::path& folder, const std::optional<Json>& config) {
  if (io::is_gguf_file(folder)) return gguf_templates(folder);
  Sources found;
  // As it is: transformers keeps a byte order mark of a template, too.
  const auto add = [&](const std::string& name, const fs::path& path) {
    found[name] = {io::read_file(path), path.string()};
  };
  if (fs::exists(folder / "chat_template.jinja")) add("default", folder / "chat_template.jinja");
  if (const fs::path more = folder / "additional_chat_templates"; fs::is_directory(more))
    for (const fs::directory_entry& entry : fs::directory_iterator(more))
      if (entry.path().extension() == ".jinja") add(entry.path().stem().string(), entry.path());
  if (found.empty() && config) found = named_templates(*config, folder / "tokenizer_config.json");
  const fs::path processor = folder / "chat_template.json";
  if (const auto object = found.empty() ? read_object(processor) : std::nullopt)
    found = named_templates(*object, processor);
  return found;
}

/// The template, and the one that chats with tools have in its place.
std::pair<Source, std::optional<Source>> chosen(const fs::path& folder,
                                                const std::optional<Json>& config,
                                                const ChatSettings& settings) {
  if (fs::is_regular_file(settings.choice))
    return {{io::read_file(settings.choice), settings.choice.string()}, {}};
  Sources found = folder.empty() ? Sources{} : templates_of(folder, config);
  const bool chooses = !settings.choice.empty();
  if (found.empty() && !chooses)
    throw input_error(folder.empty() ? "chat" : folder.string(), "the model has no chat template{}",
                      io::is_gguf_file(folder)
                          ? ": key 'tokenizer.chat_template' is missing"
                          : ", neither chat_template.jinja nor 'chat_template' in "
                            "tokenizer_config.json")
        .hint("set chat.template=FILE, or write the full prompt yourself without --chat");
  const std::string name = chooses ? settings.choice.filename().string()
                           : !settings.tools.empty() && found.contains("tool_use") ? "tool_use"
                                                                                   : "default";
  if (const auto it = found.find(name), tools = found.find("tool_use"); it != found.end())
    return {it->second,
            chooses || tools == found.end() ? std::nullopt : std::optional(tools->second)};
  std::vector<std::string> names;
  for (const auto& entry : found) names.push_back(entry.first);
  throw recipe_error("chat.template", "{} {}", io::quote(chooses ? settings.choice.string() : name),
                     chooses ? "is neither a file nor one of the model's templates"
                             : "is not one of the model's templates; choose one")
      .hint(names.empty()
                ? "the model has no chat templates"
                : fmt::format("the model has these templates: {}", fmt::join(names, ", ")));
}

/// Adds the tokens that an object names: by keys such as bos_token, or by all.
void add_tokens(const Json& object, bool by_all, std::map<std::string, std::string>& tokens) {
  for (const auto& [key, value] : object.items()) {
    if (key == "extra_special_tokens" && value.is_object()) add_tokens(value, true, tokens);
    if (!by_all && !key.ends_with("_token")) continue;
    const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
    if (text.is_string()) tokens[key] = text.get<std::string>();
  }
}

/// Values of bos_token and the like, as transformers 5 takes them from tokenizer_config.json;
/// special_tokens_map.json goes before it where there is no added_tokens_decoder.
std::vector<std::pair<std::string, jinja::Value>> named_tokens(const fs::path& folder,
                                                               const std::optional<Json>& config,
                                                               const Tokenizer& tokenizer) {
  std::map<std::string, std::string> tokens;
  if (config) add_tokens(*config, false, tokens);
  if (!folder.empty() && (!config || !config->contains("added_tokens_decoder")))
    if (const auto map = read_object(folder / "special_tokens_map.json"))
      add_tokens(*map, false, tokens);
  if (folder.empty() ||
      !fs::exists(folder / "tokenizer.json"))  // others know the tokens themselves
    for (const auto& [key, id] :
         {std::pair{"bos_token", tokenizer.bos_id()}, std::pair{"eos_token", tokenizer.eos_id()}})
      if (id) tokens.try_emplace(key, tokenizer.token_bytes(*id));
  return {tokens.begin(), tokens.end()};
}

}  // namespace

std::optional<std::string> default_chat_template(const fs::path& folder) {
  const Sources found = templates_of(folder, read_object(folder / "tokenizer_config.json"));
  const auto it = found.find("default");
  return it == found.end() ? std::nullopt : std::optional(it->second.jinja);
}

ChatTemplate load_chat_template(const fs::path& folder, const Tokenizer& tokenizer,
                                ChatSettings settings) {
  const auto config = folder.empty() ? std::nullopt : read_object(folder / "tokenizer_config.json");
  const auto [source, with_tools] = chosen(folder, config, settings);
  std::vector<std::string> special;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id)) special.emplace_back(tokenizer.token_bytes(id));
  ChatTemplate made(source.jinja, source.where, std::move(settings),
                    named_tokens(folder, config, tokenizer), std::move(special));
  if (with_tools) made.use_with_tools(jinja::Template(with_tools->jinja, with_tools->where));
  return made;
}

}  // namespace tandem::text
