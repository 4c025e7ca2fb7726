#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/quote.h"
#include "recipe/fields_of.h"

namespace tandem::recipe {
namespace {

std::string joined_key(const std::string& section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

/// Keys that recipes had once, and where in the same section their place is now.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kRenamed = {
    {{"draft", "bench.drafts"}, {"texts", "batches"}}};

/// Keys without a successor: a sibling that marks their section, and the reason.
struct GoneKey {
  std::string_view key, sibling, reason;
};
constexpr GoneKey kGone[] = {
    {"trust", "refine", "samples are now always drawn by estimated weight, as with trust: 1"}};

Error unknown_key(const Field& root, const Field& section, const std::string& section_name,
                  const Node::Entry& entry) {
  std::vector<std::string_view> names;
  for (const Field& field : section.fields) names.push_back(field.name);
  std::string near = did_you_mean(entry.key, names);
  std::vector<std::string> elsewhere;
  if (near.empty() || section_name.empty()) elsewhere = keys_like(root, entry.key);
  if (near.empty() && elsewhere.empty()) elsewhere = keys_like(root, entry.key, true);
  constexpr size_t kMostNamed = 4;
  if (elsewhere.size() > kMostNamed) elsewhere.resize(kMostNamed);
  if (!elsewhere.empty()) near = fmt::format("did you mean '{}'?", fmt::join(elsewhere, "' or '"));
  if (!near.empty()) near += "  ";
  for (const auto& [old, now] : kRenamed)
    if (entry.key == old && find_field(section, now) != nullptr)
      near = fmt::format("it was renamed to {}  ", joined_key(section_name, now));
  for (const GoneKey& gone : kGone)
    if (entry.key == gone.key && find_field(section, gone.sibling) != nullptr)
      near = fmt::format("{}: leave it out  ", gone.reason);
  const std::string place =
      section_name.empty() ? std::string{} : fmt::format(" in section '{}'", section_name);
  return recipe_error(entry.origin.text(), "unknown key {}{}", io::quote(entry.key), place)
      .hint(fmt::format("{}valid keys: {}", near, fmt::join(names, ", ")));
}

std::string meaning(const Field& field) {
  return fmt::format("{} is: {}", field.name, field.meaning());
}

/// The kinds that have a field, as "self, model".
std::string kind_names(const Field& field) {
  std::string names(field.limits.kinds);
  for (size_t at = 0; (at = names.find('|', at)) != std::string::npos;) names.replace(at, 1, ", ");
  return names;
}

/// A key that another kind of a tagged section has.
Error other_kind(const Field& section, const Field& refused, const std::string& name,
                 const Node::Entry& entry) {
  std::vector<std::string_view> names;
  for (const Field& field : section.fields)
    if (section.has(field)) names.push_back(field.name);
  return recipe_error(entry.origin.text(), "{}kind {} has no key {}",
                      name.empty() ? name : name + ": ", section.fields.front().value->yaml(),
                      io::quote(entry.key))
      .hint(fmt::format("it needs kind {}; valid keys: {}", kind_names(refused),
                        fmt::join(names, ", ")));
}

/// result   false: a problem was added
bool read_value(const Field& field, const std::string& key, const Node& node, const Folders& models,
                Problems& problems) {
  try {
    if (std::string problem = field.value->read(node, models); !problem.empty()) {
      problems.add(recipe_error(node.origin.text(), "{}: {}", key, problem).hint(meaning(field)));
      return false;
    }
  } catch (const InvalidRecipe& inner) {  // of a list whose items are maps
    for (const Error& problem : inner.problems()) problems.add(problem);
    return false;
  }
  for (const double x : field.value->numbers())
    if (!field.limits.admit(x)) {
      problems.add(
          recipe_error(node.origin.text(), "{}: {} is out of range, expected {}", key,
                       node.kind == Node::Kind::scalar ? node.scalar : fmt::format("{}", x),
                       field.limits.range())
              .hint(meaning(field)));
      return false;
    }
  return true;
}

/// Holds the inputs and options that reading every section shares.
struct Reading {
  const Field& root;
  const Folders& models;
  Problems& problems;
  Completeness completeness;
  bool lacks = false;  // a required field, which may be missing
};

void read_section(Field& section, const std::string& name, const Node* node, Reading& reading) {
  Problems& problems = reading.problems;
  if (node != nullptr && node->kind == Node::Kind::null) node = nullptr;  // null: all defaults
  if (node != nullptr && node->kind != Node::Kind::map) {
    problems.add(recipe_error(node->origin.text(), "{}: expected a map of settings, found {}",
                              name.empty() ? "recipe" : name, node->described()));
    return;
  }
  if (node != nullptr)
    for (const Node::Entry& entry : node->entries)
      if (std::ranges::find(section.fields, entry.key, &Field::name) == section.fields.end())
        problems.add(unknown_key(reading.root, section, name, entry));

  for (Field& field : section.fields) {
    const std::string key = joined_key(name, field.name);
    const Node* value = node != nullptr ? node->find(field.name) : nullptr;
    if (!section.has(field)) {
      const auto entry = value != nullptr
                             ? std::ranges::find(node->entries, field.name, &Node::Entry::key)
                             : node->entries.end();
      if (value != nullptr && !entry->optional)
        problems.add(other_kind(section, field, name, *entry));
    } else if (field.is_section()) {
      read_section(field, key, value, reading);
    } else if (value != nullptr && value->kind != Node::Kind::null) {
      if (!read_value(field, key, *value, reading.models, problems) && field.name == "kind")
        return;  // which keys there are is not known
    } else if (field.limits.required && reading.completeness == Completeness::partial) {
      reading.lacks = true;
    } else if (field.limits.required) {
      const std::string where = node != nullptr ? node->origin.text() : std::string{};
      problems.add(recipe_error(where.empty() ? "recipe" : where, "{} is not set", key)
                       // All sections are nested: a field outside is that of a list's item.
                       .hint(name.empty()
                                 ? fmt::format("every item needs it: {}", field.text)
                                 : fmt::format("{}; set it in a recipe or with --set {}=VALUE",
                                               field.text, key)));
    }
  }
}

void run_checks(const Field& section, const std::string& name, Problems& problems) {
  for (const Field& field : section.fields)
    if (field.is_section()) run_checks(field, joined_key(name, field.name), problems);
  problems.set_section(name);
  if (section.check) section.check(problems);
}

/// top-p, top_p and top.p are one word.
std::string plain_word(std::string_view text) {
  std::string word(text);
  for (char& c : word)
    if (c == '-' || c == '.') c = '_';
  return word;
}

/// True if the last parts of a dotted key spell a plain word.
bool ends_in(std::string_view key, std::string_view word) {
  if (key.size() < word.size()) return false;
  const size_t start = key.size() - word.size();
  return plain_word(key.substr(start)) == word && (start == 0 || key[start - 1] == '.');
}

void append_keys(const Field& section, const std::string& name, std::vector<std::string>& keys) {
  for (const Field& field : section.fields) {
    const std::string key = joined_key(name, field.name);
    if (field.is_section())
      append_keys(field, key, keys);
    else
      keys.push_back(key);
  }
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// A name as model hubs have it, ORG/NAME, that is no path here.
bool is_hub_name(std::string_view text, const std::filesystem::path& folder) {
  const size_t slash = text.find('/');
  std::error_code failed;
  return slash != std::string_view::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string_view::npos && text[0] != '.' && text[0] != '~' &&
         text[0] != '$' && !std::filesystem::exists(folder / text.substr(0, slash), failed);
}

/// Returns the hint for a model that is missing: how to download it.
std::string model_hint(const std::string& key, const std::string& spelled,
                       const std::filesystem::path& folder, const Folders& models) {
  if (is_hub_name(spelled, folder)) {
    const std::string name = spelled.substr(spelled.find('/') + 1);
    return fmt::format(
        "tandem does not download models: run hf download {} --local-dir {}, then {}", spelled,
        name, key == "model.path" ? "-m " + name : "-s " + key + "=" + name);
  }
  if (spelled.find('/') != std::string::npos) return "check the path in " + key;
  std::string looked = "looked in the working directory";
  for (const auto& place : models) looked += ", " + place.string();
  const std::vector<std::string> names = model_names(models);
  const std::string near = did_you_mean(spelled, {names.begin(), names.end()});
  return near.empty() ? looked : near + "  " + looked;
}

void check_inputs_of(const Field& section, const std::string& name, const Node& tree,
                     const Folders& models) {
  for (const Field& field : section.fields) {
    const std::string key = joined_key(name, field.name);
    if (field.is_section()) {
      check_inputs_of(field, key, tree, models);
      continue;
    }
    const auto path = field.limits.input ? field.value->path() : std::nullopt;
    std::error_code failed;
    if (!path || *path == "-" || path->string().starts_with("synthetic:") ||
        std::filesystem::exists(*path, failed))
      continue;
    const Node* node = tree.find_path(key);
    const bool expanded = node != nullptr && is_expanded(node->scalar);
    Error error = input_error(node != nullptr ? node->origin.text() : key, "{} '{}'{} not found",
                              field.value->type() == "model" ? "model" : "file", path->string(),
                              expanded ? fmt::format(" (spelled '{}')", node->scalar) : "");
    if (field.value->type() == "model")
      throw std::move(error).hint(
          model_hint(key, expanded || node == nullptr ? path->string() : node->scalar,
                     node != nullptr ? node->origin.folder : "", models));
    throw std::move(error).hint(fmt::format("check the path in {}", key));
  }
}

}  // namespace

void FieldLister::add(std::string_view name, Field section, const Limits& limits,
                      std::string_view text) {
  section.name = name;
  section.text = text;
  section.limits = limits;
  list.push_back(std::move(section));
}

void FieldLister::add(std::string_view name, std::unique_ptr<Value> value, const Limits& limits,
                      std::string_view text) {
  list.push_back({.name = name, .text = text, .limits = limits, .value = std::move(value)});
}

bool Field::has(const Field& field) const {
  if (field.limits.kinds.empty()) return true;
  const std::string kind = fields.front().value->yaml();
  return fmt::format("|{}|", field.limits.kinds).find("|" + kind + "|") != std::string::npos;
}

std::string Field::meaning() const {
  return limits.kinds.empty() ? std::string(text)
                              : fmt::format("{}. Only with kind: {}", text, kind_names(*this));
}

bool Limits::admit(double x) const {
  if (min && (min_excluded ? x <= *min : x < *min)) return false;
  return !max || x <= *max;
}

std::string Limits::text() const {
  if (min && max && min_excluded) return fmt::format("{} < x <= {}", *min, *max);
  if (min && max) return fmt::format("{} .. {}", *min, *max);
  if (min) return fmt::format("{} {}", min_excluded ? ">" : ">=", *min);
  if (max) return fmt::format("<= {}", *max);
  return {};
}

std::string Limits::range() const {
  const std::string bounds = text();
  return fmt::format("{}{}{}", bounds, bounds.empty() || unit_name.empty() ? "" : " ", unit_name);
}

const Field* find_field(const Field& root, std::string_view dotted) {
  const size_t dot = dotted.find('.');
  for (const Field& field : root.fields) {
    if (field.name != dotted.substr(0, dot)) continue;
    if (dot == std::string_view::npos) return &field;
    return find_field(field, dotted.substr(dot + 1));
  }
  return nullptr;
}

std::vector<std::string> keys_like(const Field& root, std::string_view word, bool near) {
  std::vector<std::string> keys;
  append_keys(root, "", keys);
  const std::string spelled = plain_word(word);
  std::string_view part = spelled;
  std::vector<std::string> last;
  for (const std::string& key : keys) last.emplace_back(last_part(key));
  if (near) part = nearest(spelled, {last.begin(), last.end()});
  std::erase_if(keys, [&](const std::string& key) {
    return part.empty() || (near ? last_part(key) != part : !ends_in(key, spelled));
  });
  std::ranges::stable_sort(keys, {},
                           [](const std::string& key) { return std::ranges::count(key, '.'); });
  return keys;
}

std::vector<std::string> model_names(const Folders& models) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto& folder : models)
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
      if (std::filesystem::exists(entry.path() / "config.json", failed))
        names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

void read_fields(Field& root, const Node& tree, const Folders& models, Completeness completeness) {
  Problems problems(tree);
  Reading reading{root, models, problems, completeness};
  read_section(root, "", &tree, reading);
  // Cross-field rules may assume that every field is in range.
  const bool is_template =
      completeness == Completeness::partial && (reading.lacks || tree.entries.empty());
  if (problems.empty() && !is_template) run_checks(root, "", problems);
  problems.raise();
}

void check_inputs(const Field& root, const Node& tree, const Folders& models) {
  check_inputs_of(root, "", tree, models);
}

}  // namespace tandem::recipe
