#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace tandem::text::jinja {
namespace {

std::string text_of(const Arguments& a) { return to_text(input(a)); }
/// Returns the text of a filter's input. errors   Failure: it is of another type
const std::string& string_of(const Arguments& a, const char* filter) {
  require_defined(input(a));
  if (input(a).string() == nullptr)
    throw Failure(fmt::format("{} of a {} is not supported", filter, type_of(input(a))));
  return *input(a).string();
}
Values items_of(const Arguments& a) { return iterate(input(a)); }
Value generator(Values items) { return {std::move(items), Sequence::Form::generator}; }

/// Text that Jinja would not escape when it is joined to other text.
Value marked_safe(Value text) {
  text.safe = true;
  return text;
}

std::vector<std::string> parts_of(const std::string& path, const std::string& separator) {
  return split(path, &separator, -1, false);
}

/// The part of an item that an argument `attribute` such as "a.b.0" names; undefined: the item.
Value part_of(Value v, const Value& path, const Value& otherwise = None{}) {
  if (path.is_none() || path.is_undefined()) return v;
  if (path.string() == nullptr) return item(v, path);
  for (const std::string& part : parts_of(*path.string(), ".")) {
    v = item(
        v, is_all(part, Class::decimal) && part.size() < 10 ? Value(std::stoi(part)) : Value(part));
    if (v.is_undefined() && !otherwise.is_none()) v = otherwise;
  }
  return v;
}

Value without_case(const Value& v) { return v.string() != nullptr ? Value(lower(*v.string())) : v; }

/// What an item is ordered or grouped by. errors   as Arguments
struct Key {
  Key(const Arguments& a, size_t case_at, size_t attribute_at)
      : attribute(a.get(attribute_at, "attribute", None{})),
        case_sensitive(a.flag(case_at, "case_sensitive", false)) {}
  Value operator()(const Value& v, const Value& path) const {
    const Value part = part_of(v, path);
    return case_sensitive ? part : without_case(part);
  }
  Value operator()(const Value& v) const { return (*this)(v, attribute); }
  Value attribute;
  bool case_sensitive;
};

template <class KeyOf>
void sort_by(Values& items, bool reverse, const KeyOf& key_of) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& v : items) {
    Value key = key_of(v);
    keyed.emplace_back(std::move(key), std::move(v));
  }
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
}

Value sort_filter(Interpreter&, Arguments& a) {
  a.expect("sort", 1, 4, {"reverse", "case_sensitive", "attribute"});
  const Key key(a, 2, 3);
  Values items = items_of(a);
  const std::string* paths = key.attribute.string();
  sort_by(items, a.flag(1, "reverse", false), [&](const Value& v) {
    if (paths == nullptr) return key(v);
    Values parts;
    for (const std::string& path : parts_of(*paths, ",")) parts.push_back(key(v, path));
    return Value(std::move(parts), Sequence::Form::tuple);
  });
  return items;
}

Value dictsort_filter(Interpreter&, Arguments& a) {
  a.expect("dictsort", 1, 4, {"case_sensitive", "by", "reverse"});
  const std::string by = a.has(2, "by") ? a.text(2, "by") : "key";
  if (by != "key" && by != "value")
    throw Failure("dictsort: expected by='key' or by='value', found '" + by + "'");
  if (input(a).dict() == nullptr) throw Failure("dictsort needs a dict, not " + type_of(input(a)));
  Values pairs;
  for (const auto& [key, value] : input(a).dict()->entries)
    pairs.emplace_back(Values{key, value}, Sequence::Form::tuple);
  const bool cased = a.flag(1, "case_sensitive", false);
  sort_by(pairs, a.flag(3, "reverse", false), [&](const Value& pair) {
    const Value& part = pair.sequence()->items[by == "key" ? 0 : 1];
    return cased ? part : without_case(part);
  });
  return pairs;
}

template <bool largest>
Value extreme_filter(Interpreter&, Arguments& a) {
  a.expect(largest ? "max" : "min", 1, 3, {"case_sensitive", "attribute"});
  const Key key(a, 1, 2);
  const Values items = items_of(a);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  for (const Value& v : items)
    if (largest ? less(key(*best), key(v)) : less(key(v), key(*best))) best = &v;
  return *best;
}

Value unique_filter(Interpreter&, Arguments& a) {
  a.expect("unique", 1, 3, {"case_sensitive", "attribute"});
  const Key key(a, 1, 2);
  Values seen, kept;
  for (const Value& v : items_of(a)) {
    Value k = key(v);
    require_hashable(k);
    if (std::ranges::any_of(seen, [&](const Value& s) { return equal(s, k); })) continue;
    seen.push_back(std::move(k));
    kept.push_back(v);
  }
  return generator(std::move(kept));
}

Value groupby_filter(Interpreter&, Arguments& a) {
  a.expect("groupby", 2, 4, {"attribute", "default", "case_sensitive"});
  const Value path = a.get(1, "attribute"), otherwise = a.get(2, "default", None{});
  const bool cased = a.flag(3, "case_sensitive", false);
  const auto key_of = [&](const Value& v) {
    const Value part = part_of(v, path, otherwise);
    return cased ? part : without_case(part);
  };
  Values items = items_of(a), groups;
  sort_by(items, false, key_of);
  for (size_t i = 0; i < items.size();) {
    const Value key = key_of(items[i]);
    const Value shown = part_of(items[i], path, otherwise);
    Values group;
    for (; i < items.size() && equal(key_of(items[i]), key); ++i) group.push_back(items[i]);
    groups.emplace_back(Values{shown, std::move(group)}, Sequence::Form::tuple);
  }
  return groups;
}

Value sum_filter(Interpreter&, Arguments& a) {
  a.expect("sum", 1, 3, {"attribute", "start"});
  Value sum = a.get(2, "start", 0);
  if (sum.string() != nullptr) throw Failure("sum() can't sum strings");
  for (const Value& v : items_of(a)) sum = arithmetic("+", sum, part_of(v, a.get(1, "attribute")));
  return sum;
}

Value join_filter(Interpreter&, Arguments& a) {
  a.expect("join", 1, 3, {"d", "attribute"});
  const std::string separator = a.has(1, "d") ? to_text(a.get(1, "d")) : "";
  std::string out;
  bool first = true;
  for (const Value& v : items_of(a)) {
    if (!std::exchange(first, false)) out += separator;
    out += to_text(part_of(v, a.get(2, "attribute")));
    require_fits(out.size());
  }
  return out;
}

/// The arguments that map and select hand on.
Arguments handed_on(const Arguments& a, size_t from) {
  Arguments rest{{Value()}, a.named};
  for (size_t i = from; i < a.positional.size(); ++i) rest.positional.push_back(a.positional[i]);
  return rest;
}

Value map_filter(Interpreter& interpreter, Arguments& a) {
  Values out;
  if (!truth(input(a))) return generator({});  // none too
  if (a.positional.size() == 1 && a.has(SIZE_MAX, "attribute")) {
    a.expect("map", 1, 1, {"attribute", "default"});
    const Value path = a.get(SIZE_MAX, "attribute"), otherwise = a.get(SIZE_MAX, "default", None{});
    for (const Value& v : items_of(a)) out.push_back(part_of(v, path, otherwise));
    return generator(std::move(out));
  }
  if (a.positional.size() < 2) throw Failure("map requires a filter argument");
  const std::string name = a.text(1, "filter");
  Arguments rest = handed_on(a, 2);
  for (Value& v : items_of(a)) {
    rest.positional[0] = std::move(v);
    out.push_back(interpreter.filter(name, rest));
  }
  return generator(std::move(out));
}

template <bool keeps, bool by_attribute>
Value select_filter(Interpreter& interpreter, Arguments& a) {
  constexpr size_t at = by_attribute ? 2 : 1;
  if (!truth(input(a))) return generator({});  // none too
  if (a.positional.size() < at) throw Failure("Missing parameter for attribute name");
  const bool has_test = a.positional.size() > at;
  const std::string name = has_test ? to_text(a.positional[at]) : "";
  Arguments rest = handed_on(a, at + 1);
  Values out;
  for (const Value& v : items_of(a)) {
    rest.positional[0] = by_attribute ? part_of(v, a.positional[1]) : v;
    if ((has_test ? interpreter.test(name, rest) : truth(rest.positional[0])) == keeps)
      out.push_back(v);
  }
  return generator(std::move(out));
}

Value tojson_filter(Interpreter&, Arguments& a) {
  a.expect("tojson", 1, 5, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = a.flag(1, "ensure_ascii", false),
                  .sort_keys = a.flag(4, "sort_keys", false)};
  if (const Value indent = a.get(2, "indent", None{}); !indent.is_none()) {
    int64_t n = 0;
    style.indented = true;
    style.item_separator = ",";
    style.indent = indent.integer(n) ? padded("", std::min<int64_t>(n, 1000), " ", Side::left)
                                     : a.text(2, "indent");
  }
  if (const Value both = a.get(3, "separators", None{}); !both.is_none()) {
    const Values two = iterate(both);
    if (two.size() != 2) throw Failure("tojson: expected two separators");
    style.item_separator = to_text(two[0]);
    style.key_separator = to_text(two[1]);
  }
  std::string out;
  append_json(input(a), style, 0, out);
  return out;
}

/// Python's int(text, base) or float(text): nothing but the number and white space around it.
std::optional<int64_t> parse_integer(const std::string& text, int64_t base) {
  std::string digits(strip(text, nullptr, Side::both));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const std::string prefix = lower(digits.substr(0, 2));
  if ((base == 16 && prefix == "0x") || (base == 8 && prefix == "0o") ||
      (base == 2 && prefix == "0b"))
    digits.erase(0, 2);
  std::erase(digits, '_');
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  if (base < 2 || base > 36 || digits.empty() || digits[0] == '-') return std::nullopt;
  const auto [stop, error] = std::from_chars(digits.data(), end, value, static_cast<int>(base));
  if (error != std::errc() || stop != end) return std::nullopt;
  return negative ? -value : value;
}
std::optional<double> parse_real(const Value& v) {
  double number = 0;
  if (v.number(number)) return number;
  if (v.string() == nullptr) return std::nullopt;
  std::string_view text = strip(*v.string(), nullptr, Side::both);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size())
    return std::nullopt;
  return number;
}

Value int_filter(Interpreter&, Arguments& a) {
  a.expect("int", 1, 3, {"default", "base"});
  const Value& v = input(a);
  int64_t whole = 0;
  if (v.integer(whole)) return whole;
  if (v.string() != nullptr)
    if (const auto parsed = parse_integer(*v.string(), a.integer(2, "base", 10))) return *parsed;
  require_defined(v);
  const auto real = parse_real(v);
  constexpr double kLargest = 9.2e18;
  if (real && std::isfinite(*real) && std::abs(*real) < kLargest)
    return static_cast<int64_t>(*real);
  if (real && std::isfinite(*real)) throw Failure("int: expected a number within 64 bits");
  return a.get(1, "default", 0);
}

Value float_filter(Interpreter&, Arguments& a) {
  a.expect("float", 1, 2, {"default"});
  require_defined(input(a));
  const auto real = parse_real(input(a));
  return real ? Value(*real) : a.get(1, "default", 0.0);
}

Value round_filter(Interpreter&, Arguments& a) {
  a.expect("round", 1, 3, {"precision", "method"});
  const std::string method = a.has(2, "method") ? a.text(2, "method") : "common";
  const int64_t precision = a.integer(1, "precision", 0);
  double x = 0;
  if (!input(a).number(x)) throw Failure("round: a number is required, not " + type_of(input(a)));
  if (std::abs(precision) > 300) throw Failure("round: expected a precision of at most 300 digits");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil" || method == "floor")
    return (method == "ceil" ? std::ceil(x * scale) : std::floor(x * scale)) / scale;
  if (method != "common") throw Failure("method must be common, ceil or floor");
  int64_t whole = 0;
  if (input(a).integer(whole) && precision >= 0) return whole;
  // Decimal digits are rounded as printf does, halves of the binary value to even.
  const double rounded = precision >= 0 ? std::stod(fmt::format("{:.{}f}", x, precision))
                                        : std::nearbyint(x * scale) / scale;
  return input(a).integer(whole) ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
}

Value indent_filter(Interpreter&, Arguments& a) {
  a.expect("indent", 1, 4, {"width", "first", "blank"});
  const Value width = a.get(1, "width", 4);
  const std::string indention =
      width.string() ? *width.string() : padded("", a.integer(1, "width", 4), " ", Side::left);
  const bool blank = a.flag(3, "blank", false);
  std::string out;
  bool first = true;
  for (const std::string& line : split_lines(string_of(a, "indent") + "\n", false)) {
    const bool begins = std::exchange(first, false);
    if (!begins) out += '\n';
    if (begins ? a.flag(2, "first", false) : blank || !line.empty()) out += indention;
    out += line;
    require_fits(out.size());
  }
  return out;
}

Value batch_filter(Interpreter&, Arguments& a) {
  a.expect("batch", 2, 3, {"linecount", "fill_with"});
  const int64_t count = a.integer(1, "linecount", 1);
  if (count < 1) throw Failure("batch: expected at least 1 item a row");
  const auto n = static_cast<size_t>(count);
  const Value fill = a.get(2, "fill_with", None{});
  Values out, row;
  for (Value& v : items_of(a)) {
    if (row.size() == n) out.emplace_back(std::exchange(row, {}));
    row.push_back(std::move(v));
  }
  if (!row.empty()) {
    if (!fill.is_none()) {
      require_fits(n);
      row.resize(n, fill);
    }
    out.emplace_back(std::move(row));
  }
  return generator(std::move(out));
}

Value slice_filter(Interpreter&, Arguments& a) {
  a.expect("slice", 2, 3, {"slices", "fill_with"});
  const Values items = items_of(a);
  const int64_t n = a.integer(1, "slices", 1);
  if (n < 1 || n > 100'000) throw Failure("slice: expected from 1 to 100000 slices");
  const auto count = static_cast<size_t>(n), each = items.size() / count,
             more = items.size() % count;
  const Value fill = a.get(2, "fill_with", None{});
  Values out;
  for (size_t i = 0, at = 0; i < count; ++i) {
    const size_t take = each + (i < more ? 1 : 0);
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(at);
    Values row(begin, begin + static_cast<std::ptrdiff_t>(take));
    if (!fill.is_none() && i >= more) row.push_back(fill);
    out.emplace_back(std::move(row));
    at += take;
  }
  return generator(std::move(out));
}

/// Jinja's own rule: a word begins after white space, a hyphen or an opening bracket.
Value title_filter(Interpreter&, Arguments& a) {
  a.expect("title", 1, 1);
  std::string out, word;
  const auto end_word = [&] {
    const std::string first = substring(word, 0, 1);
    out += upper(first) + lower(std::string_view(word).substr(first.size()));
    word.clear();
  };
  for (const Value& c : iterate(text_of(a))) {
    const std::string& character = *c.string();
    const bool splits = is_all(character, Class::space) ||
                        std::string_view("-({[<").find(character) != std::string_view::npos;
    if (!splits) {
      word += character;
      continue;
    }
    end_word();
    out += character;
  }
  end_word();
  return out;
}

Value escape_filter(Interpreter&, Arguments& a) {
  a.expect("escape", 1, 1);
  return marked_safe(input(a).safe ? text_of(a) : escaped(text_of(a)));
}

Value truncate_filter(Interpreter&, Arguments& a) {
  a.expect("truncate", 1, 5, {"length", "killwords", "end", "leeway"});
  const std::string text = string_of(a, "truncate"),
                    end = a.has(3, "end") ? a.text(3, "end") : "...";
  const int64_t most = a.integer(1, "length", 255), leeway = a.integer(4, "leeway", 5);
  const auto mark = static_cast<int64_t>(n_characters(end));
  if (most < mark || leeway < 0)
    throw Failure("truncate: the length is less than that of the end mark");
  if (static_cast<int64_t>(n_characters(text)) <= most + leeway) return text;
  std::string cut = substring(text, 0, static_cast<size_t>(most - mark));
  if (!a.flag(2, "killwords", false)) cut = cut.substr(0, cut.rfind(' '));
  return cut + end;
}

Value reverse_filter(Interpreter&, Arguments& a) {
  a.expect("reverse", 1, 1);
  Values items = items_of(a);
  std::ranges::reverse(items);
  if (input(a).string() == nullptr) return generator(std::move(items));
  std::string out;
  for (const Value& c : items) out += *c.string();
  return out;
}

Value default_filter(Interpreter&, Arguments& a) {
  a.expect("default", 1, 3, {"default_value", "boolean"});
  const bool absent = input(a).is_undefined() || (a.flag(2, "boolean", false) && !truth(input(a)));
  return absent ? a.get(1, "default_value", "") : input(a);
}

Value replace_filter(Interpreter&, Arguments& a) {
  a.expect("replace", 3, 4, {"old", "new", "count"});
  const bool limited = !a.get(3, "count", None{}).is_none();
  return replace(text_of(a), to_text(a.get(1, "old")), to_text(a.get(2, "new")),
                 limited ? a.integer(3, "count", -1) : -1);
}

template <std::string (*convert)(std::string_view)>
Value text_filter(Interpreter&, Arguments& a) {
  a.expect("the filter", 1, 1);
  return convert(text_of(a));
}

const std::unordered_map<std::string_view, Builtin>& filters() {
  static const std::unordered_map<std::string_view, Builtin> table = {
      {"batch", batch_filter},
      {"capitalize", text_filter<capitalize>},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"float", float_filter},
      {"groupby", groupby_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"join", join_filter},
      {"lower", text_filter<lower>},
      {"map", map_filter},
      {"max", extreme_filter<true>},
      {"min", extreme_filter<false>},
      {"reject", select_filter<false, false>},
      {"rejectattr", select_filter<false, true>},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"select", select_filter<true, false>},
      {"selectattr", select_filter<true, true>},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"sum", sum_filter},
      {"title", title_filter},
      {"tojson", tojson_filter},
      {"truncate", truncate_filter},
      {"unique", unique_filter},
      {"upper", text_filter<upper>},
      {"abs",
       [](Interpreter&, Arguments& a) {
         a.expect("abs", 1, 1);
         double x = 0;
         if (!input(a).number(x))
           throw Failure("bad operand type for abs(): '" + type_of(input(a)) + "'");
         return x < 0 ? arithmetic("*", input(a), -1) : arithmetic("*", input(a), 1);
       }},
      {"attr",
       [](Interpreter&, Arguments& a) {
         a.expect("attr", 2, 2, {"name"});
         // Attributes alone, never items.
         if (input(a).dict() != nullptr && input(a).dict()->named(a.text(1, "name")) != nullptr)
           return Value::undefined("dict has no attribute '" + a.text(1, "name") + "'");
         return attribute(input(a), a.text(1, "name"));
       }},
      {"center",
       [](Interpreter&, Arguments& a) {
         a.expect("center", 1, 2, {"width"});
         return Value(padded(text_of(a), a.integer(1, "width", 80), " ", Side::both));
       }},
      {"count",
       [](Interpreter&, Arguments& a) {
         a.expect("count", 1, 1);
         return Value(length(input(a)));
       }},
      {"length",
       [](Interpreter&, Arguments& a) {
         a.expect("length", 1, 1);
         return Value(length(input(a)));
       }},
      {"first",
       [](Interpreter&, Arguments& a) {
         a.expect("first", 1, 1);
         const Values items = items_of(a);
         return items.empty() ? Value::undefined("No first item, sequence was empty.")
                              : items.front();
       }},
      {"last",
       [](Interpreter&, Arguments& a) {
         a.expect("last", 1, 1);
         if (const Sequence* s = input(a).sequence(); s && s->form == Sequence::Form::generator)
           throw Failure("'generator' object is not reversible");
         const Values items = items_of(a);
         return items.empty() ? Value::undefined("No last item, sequence was empty.")
                              : items.back();
       }},
      {"format",
       [](Interpreter&, Arguments& a) {
         if (input(a).safe) throw Failure("formatting text that is marked safe is not supported");
         Values rest(a.positional.begin() + 1, a.positional.end());
         if (a.named.empty())
           return Value(format_percent(text_of(a), {std::move(rest), Sequence::Form::tuple}));
         Dict named;
         for (const auto& [name, v] : a.named) named.set(name, v);
         return Value(format_percent(text_of(a), std::move(named)));
       }},
      {"items",
       [](Interpreter& interpreter, Arguments& a) {
         a.expect("items", 1, 1);
         if (input(a).is_undefined()) return generator({});
         if (input(a).dict() == nullptr) throw Failure("Can only get item pairs from a mapping.");
         Arguments none;
         return generator(iterate(interpreter.call(attribute(input(a), "items"), none)));
       }},
      {"list",
       [](Interpreter&, Arguments& a) {
         a.expect("list", 1, 1);
         return Value(items_of(a));
       }},
      {"safe",
       [](Interpreter&, Arguments& a) {
         a.expect("safe", 1, 1);
         return marked_safe(text_of(a));
       }},
      {"string",
       [](Interpreter&, Arguments& a) {
         a.expect("string", 1, 1);
         return Value(text_of(a));
       }},
      {"trim",
       [](Interpreter&, Arguments& a) {
         a.expect("trim", 1, 2, {"chars"});
         if (a.get(1, "chars", None{}).is_none())
           return Value(strip(text_of(a), nullptr, Side::both));
         const std::string characters = a.text(1, "chars");
         return Value(strip(text_of(a), &characters, Side::both));
       }},
      {"wordcount",
       [](Interpreter&, Arguments& a) {
         a.expect("wordcount", 1, 1);
         size_t n = 0;
         bool inside = false;
         for (const Value& c : iterate(text_of(a))) {
           const bool word = is_all(*c.string(), Class::alnum) || *c.string() == "_";
           n += word && !inside ? 1 : 0;
           inside = word;
         }
         return Value(n);
       }},
  };
  return table;
}

}  // namespace

Builtin find_filter(std::string_view name) {
  const auto it = filters().find(name);
  return it == filters().end() ? nullptr : it->second;
}

std::string unknown_name(const char* what, const std::string& name) {
  constexpr std::string_view kOthers[] = {"filesizeformat", "forceescape", "pprint",
                                          "random",         "striptags",   "urlencode",
                                          "urlize",         "wordwrap",    "xmlattr"};
  if (std::ranges::find(kOthers, name) != std::end(kOthers))
    return fmt::format("{} '{}' is not supported", what, name);
  return fmt::format("no {} is named '{}'", what, name);
}

}  // namespace tandem::text::jinja
