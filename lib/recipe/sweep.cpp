#include "recipe/sweep.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "recipe/fields.h"
#include "recipe/rewrite.h"
#include "recipe/scalar.h"
#include "recipe/units.h"

namespace tandem::recipe {
namespace {

constexpr size_t kMaxValues = 10000, kMaxPoints = 100000;

std::optional<int64_t> count_of(std::string_view text) {
  TokenCount count;
  if (text.empty() || text[0] < '0' || text[0] > '9' || !parse_units(text, count).empty())
    return std::nullopt;
  return count.value;
}

/// Appends the values of `A-B`, `A-B+STEP` or `A-B*FACTOR`; false if the text is no range.
bool append_range(const Node& item, std::vector<Node>& values) {
  const std::string_view text = item.scalar;
  const size_t dash = text.find('-');
  if (item.quoted || dash == std::string_view::npos) return false;
  const size_t op = std::min(text.find_first_of("+*", dash), text.size());
  const auto first = count_of(text.substr(0, dash));
  const auto last = count_of(text.substr(dash + 1, op - dash - 1));
  if (!first || !last) return false;
  const bool factor = op < text.size() && text[op] == '*';
  const auto step = op < text.size() ? count_of(text.substr(op + 1)) : std::optional<int64_t>(1);
  if (*first > *last)
    throw recipe_error(item.origin.text(), "range '{}' ends before it begins", text);
  if (!step || *step < (factor ? 2 : 1) || (factor && *first == 0))
    throw recipe_error(item.origin.text(), "range '{}' never ends", text)
        .hint(
            "A-B+STEP needs a step of at least 1; A-B*FACTOR needs a factor of at least 2, and A "
            "above 0");
  // Counts are below 2^53, so neither step can overflow before the comparison.
  for (int64_t x = *first; x <= *last;) {
    if (values.size() == kMaxValues)
      throw recipe_error(item.origin.text(), "range '{}' has more than {} values", text,
                         kMaxValues);
    values.push_back(scalar_node(std::to_string(x), item.origin));
    if (factor && x > *last / *step) break;
    x = factor ? x * *step : x + *step;
  }
  return true;
}

std::vector<Node> expand(const std::string& key, const Node& list) {
  std::vector<Node> values;
  for (const Node& item : list.items)
    if (item.kind != Node::Kind::scalar || !append_range(item, values)) values.push_back(item);
  if (values.empty()) throw recipe_error(list.origin.text(), "sweep of '{}' has no values", key);
  std::set<std::string> seen;
  for (const Node& value : values)
    if (const auto [text, is_new] = seen.insert(flow_text(value)); !is_new)
      throw recipe_error(value.origin.text(), "sweep of '{}' has the value {} twice", key, *text)
          .hint("name each value once");
  return values;
}

/// errors   kind recipe: nothing between two commas of a list
void refuse_empty_values(const std::string& text, const Origin& origin) {
  bool has_value = false;
  int depth = 0;
  char quote = 0;
  for (const char c : text + ',') {
    const bool ends = quote == 0 && depth == 0 && c == ',';
    if (ends && !has_value)
      throw recipe_error(origin.text(), "the list '{}' has an empty value", text)
          .hint("put one comma between two values");
    has_value = !ends && (has_value || c != ' ');
    if (quote != 0 ? c == quote : c == '"' || c == '\'') quote = quote != 0 ? 0 : c;
    if (quote == 0) depth += (c == '[' || c == '{') - (c == ']' || c == '}');
  }
}

/// An axis takes the place of an older one of its key.
void set_axis(std::vector<SweepAxis>& axes, SweepAxis axis) {
  const auto old = std::ranges::find(axes, axis.key, &SweepAxis::key);
  if (old != axes.end())
    *old = std::move(axis);
  else
    axes.push_back(std::move(axis));
}

Node parse_list(const std::string& text, const Origin& origin) {
  if (!text.empty()) refuse_empty_values(text, origin);
  return parse_yaml("[" + text + "]", origin);
}

std::string dotted(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

void append_axes(const Node& map, const std::string& section, std::vector<SweepAxis>& axes) {
  for (const Node::Entry& entry : map.entries) {
    const std::string key = dotted(section, entry.key);
    if (entry.value.kind == Node::Kind::list) {
      set_axis(axes, {key, expand(key, entry.value)});
    } else if (entry.value.kind == Node::Kind::scalar) {
      Origin origin = entry.value.origin;
      origin.name = std::make_shared<const std::string>(origin.text());
      origin.line = origin.column = 0;  // one place: columns within the list would mislead
      set_axis(axes, {key, expand(key, parse_list(entry.value.scalar, origin))});
    } else if (entry.value.kind == Node::Kind::map) {
      append_axes(entry.value, key, axes);
    } else {
      throw recipe_error(entry.value.origin.text(), "sweep of '{}': expected a list, found {}", key,
                         entry.value.described());
    }
  }
}

void take_lists_of(Node& map, const Field& section, const std::string& name,
                   std::vector<SweepAxis>& axes) {
  std::vector<Node::Entry> kept;
  for (Node::Entry& entry : map.entries) {
    const auto field = std::ranges::find(section.fields, entry.key, &Field::name);
    const bool known = field != section.fields.end();
    const std::string key = dotted(name, entry.key);
    if (known && field->is_section() && entry.value.kind == Node::Kind::map)
      take_lists_of(entry.value, *field, key, axes);
    if (known && !field->is_section() && entry.value.kind == Node::Kind::list &&
        field->value->type().find("list of") == std::string::npos)
      set_axis(axes, {key, expand(key, entry.value)});
    else
      kept.push_back(std::move(entry));
  }
  map.entries = std::move(kept);
}

}  // namespace

std::vector<SweepAxis> take_sweep(Node& tree) {
  std::vector<SweepAxis> axes;
  const auto section = std::ranges::find(tree.entries, "sweep", &Node::Entry::key);
  if (section == tree.entries.end()) return axes;
  const Node sweep = std::move(section->value);
  tree.entries.erase(section);
  if (sweep.kind == Node::Kind::null) return axes;
  if (sweep.kind != Node::Kind::map)
    throw recipe_error(sweep.origin.text(), "sweep: expected a map from keys to lists, found {}",
                       sweep.described());
  append_axes(sweep, "", axes);
  return axes;
}

void take_lists(std::vector<SweepAxis>& axes, Node& tree, const Field& schema) {
  take_lists_of(tree, schema, "", axes);
}

void add_sweep(std::vector<SweepAxis>& axes, const std::string& setting, const std::string& label) {
  const size_t equals = setting.find('=');
  if (equals == 0 || equals == std::string::npos)
    throw usage_error(label, "expected KEY=LIST, found '{}'", setting)
        .hint("for example --sweep run.batch=1,2,4 or --sweep run.batch=1-256*2");
  const std::string key = setting.substr(0, equals);
  const Origin origin{std::make_shared<const std::string>(label), {}, 0, 0};
  set_axis(axes, {key, expand(key, parse_list(setting.substr(equals + 1), origin))});
}

std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes) {
  std::vector<SweepPoint> points = {{}};
  for (const SweepAxis& axis : axes) {
    if (points.size() * axis.values.size() > kMaxPoints)
      throw recipe_error("sweep", "has more than {} points", kMaxPoints)
          .hint("sweep fewer keys or values");
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points)
      for (const Node& value : axis.values) {
        longer.push_back(point);
        longer.back().emplace_back(axis.key, value);
      }
    points = std::move(longer);
  }
  return points;
}

std::string dump_sweep(const std::vector<SweepAxis>& axes) {
  std::string text = axes.empty() ? "" : "sweep:\n";
  for (const SweepAxis& axis : axes) {
    Node list;
    list.kind = Node::Kind::list;
    list.items = axis.values;
    text += fmt::format("  {}: {}\n", axis.key, flow_text(list));
  }
  return text;
}

}  // namespace tandem::recipe
