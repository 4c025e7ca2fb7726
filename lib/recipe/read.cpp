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
    {"trust", "refine", "samples are drawn by estimated weight itself now, as trust: 1 did"}};

Error unknown_key(const Field& section, const std::string& section_name, const Node::Entry& entry) {
  std::vector<std::string_view> names;
  for (const Field& field : section.fields) names.push_back(field.name);
  std::string near = did_you_mean(entry.key, names);
  if (!near.empty()) near += "  ";
  for (const auto& [old, now] : kRenamed)
    if (entry.key == old && find_field(section, now) != nullptr)
      near = fmt::format("it is {} now  ", joined_key(section_name, now));
  for (const GoneKey& gone : kGone)
    if (entry.key == gone.key && find_field(section, gone.sibling) != nullptr)
      near = fmt::format("{}: leave it out  ", gone.reason);
  const std::string place =
      section_name.empty() ? std::string{} : fmt::format(" in section '{}'", section_name);
  return recipe_error(entry.origin.text(), "unknown key {}{}", io::quote(entry.key), place)
      .hint(fmt::format("{}valid keys: {}", near, fmt::join(names, ", ")));
}

std::string meaning(const Field& field) { return fmt::format("{} is: {}", field.name, field.text); }

void read_value(const Field& field, const std::string& key, const Node& node, const Folders& models,
                Problems& problems) {
  try {
    if (std::string problem = field.value->read(node, models); !problem.empty()) {
      problems.add(recipe_error(node.origin.text(), "{}: {}", key, problem).hint(meaning(field)));
      return;
    }
  } catch (const InvalidRecipe& inner) {  // of a list whose items are maps
    for (const Error& problem : inner.problems()) problems.add(problem);
    return;
  }
  for (const double x : field.value->numbers())
    if (!field.limits.admit(x)) {
      problems.add(
          recipe_error(node.origin.text(), "{}: {} is out of range, expected {}", key,
                       node.kind == Node::Kind::scalar ? node.scalar : fmt::format("{}", x),
                       field.limits.range())
              .hint(meaning(field)));
      return;
    }
}

void read_section(Field& section, const std::string& name, const Node* node, const Folders& models,
                  Problems& problems) {
  if (node != nullptr && node->kind == Node::Kind::null) node = nullptr;  // null: all defaults
  if (node != nullptr && node->kind != Node::Kind::map) {
    problems.add(recipe_error(node->origin.text(), "{}: expected a map of settings, found {}",
                              name.empty() ? "recipe" : name, node->described()));
    return;
  }
  if (node != nullptr)
    for (const Node::Entry& entry : node->entries)
      if (std::ranges::find(section.fields, entry.key, &Field::name) == section.fields.end())
        problems.add(unknown_key(section, name, entry));

  for (Field& field : section.fields) {
    const std::string key = joined_key(name, field.name);
    const Node* value = node != nullptr ? node->find(field.name) : nullptr;
    if (field.is_section()) {
      read_section(field, key, value, models, problems);
    } else if (value != nullptr && value->kind != Node::Kind::null) {
      read_value(field, key, *value, models, problems);
    } else if (field.limits.required) {
      const std::string where = node != nullptr ? node->origin.text() : std::string{};
      problems.add(recipe_error(where.empty() ? "recipe" : where, "{} is not set", key)
                       // All sections are nested: a field outside is that of a list's item.
                       .hint(name.empty()
                                 ? fmt::format("every item has it: {}", field.text)
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
    if (field.value->type() == "model" && path->string().find('/') == std::string::npos) {
      std::string looked = "looked in the working directory";
      for (const auto& folder : models) looked += ", " + folder.string();
      throw std::move(error).hint(looked);
    }
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

void read_fields(Field& root, const Node& tree, const Folders& models) {
  Problems problems(tree);
  read_section(root, "", &tree, models, problems);
  // Cross-field rules may assume that every field is in range.
  if (problems.empty()) run_checks(root, "", problems);
  problems.raise();
}

void check_inputs(const Field& root, const Node& tree, const Folders& models) {
  check_inputs_of(root, "", tree, models);
}

}  // namespace tandem::recipe
