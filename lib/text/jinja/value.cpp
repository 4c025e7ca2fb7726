#include "text/jinja/value.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "io/json.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace tandem::text::jinja {
namespace {

bool same_text(const Value& value, std::string_view text) {
  const std::string* s = value.string();
  return s != nullptr && *s == text;
}

[[noreturn]] void no_order(const Value& a, const Value& b, const char* op) {
  throw Failure(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, type_of(a),
                            type_of(b)));
}

/// Index of an item or character, counted from the end where it is negative; -1: out of range.
int64_t index_in(int64_t i, size_t n) {
  const auto count = static_cast<int64_t>(n);
  if (i < 0) i += count;
  return i >= 0 && i < count ? i : -1;
}

Value missing(const Value& holder, const std::string& key) {
  return Value::undefined(
      holder.is_none() ? fmt::format("'None' has no attribute '{}'", key)
                       : fmt::format("'{} object' has no attribute '{}'", type_of(holder), key));
}

void append_items(const Values& items, std::string& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(items[i], out);
  }
}

constexpr int kDeepestValue = 200;  // of nested containers, which a template can build

/// Stops recursion over containers.
struct Nesting {
  explicit Nesting(int& n) : depth(n) {
    if (++depth > kDeepestValue) {
      --depth;
      throw Failure(fmt::format("a value is nested deeper than {} levels", kDeepestValue));
    }
  }
  ~Nesting() { --depth; }
  int& depth;
};
thread_local int nesting = 0;

}  // namespace

uint16_t depth_over(const Values& values) {
  int deepest = 0;
  for (const Value& v : values) deepest = std::max<int>(deepest, v.depth);
  if (deepest >= kDeepestValue)
    throw Failure(fmt::format("a value is nested deeper than {} levels", kDeepestValue));
  return static_cast<uint16_t>(deepest + 1);
}

Value::Value(Values items, Sequence::Form form)
    : data(std::make_shared<Sequence>()), depth(depth_over(items)) {
  *sequence() = {std::move(items), form};
}

Value::Value(Dict v) {
  Values values;
  for (const auto& entry : v.entries) values.push_back(entry.second);
  depth = depth_over(values);
  data = std::make_shared<Dict>(std::move(v));
}

Value::Value(Function v)
    : data(std::make_shared<const Function>(std::move(v))), depth(function()->depth) {}

Value Value::undefined(std::string message) {
  Value v;
  v.data = Undefined{std::make_shared<const std::string>(std::move(message))};
  return v;
}

void spend_on(const Value& value) {
  constexpr size_t kBytes = 32;  // of text that a step walks over
  if (const std::string* text = value.string()) spend(text->size() / kBytes);
  if (const Sequence* list = value.sequence()) spend(list->items.size());
  if (const Dict* dict = value.dict()) spend(dict->entries.size());
}

Value marked_as(const Value& from, Value made) {
  if (!from.safe) return made;
  made.safe = made.string() != nullptr;
  if (Sequence* parts = made.sequence())
    for (Value& part : parts->items) part.safe = part.string() != nullptr;
  return made;
}

bool Value::integer(int64_t& out) const {
  if (const auto* i = std::get_if<int64_t>(&data)) return out = *i, true;
  if (const bool* b = boolean()) return out = *b ? 1 : 0, true;
  return false;
}

bool Value::number(double& out) const {
  if (const double* d = real()) return out = *d, true;
  int64_t i = 0;
  if (!integer(i)) return false;
  out = static_cast<double>(i);
  return true;
}

const Value* Dict::named(std::string_view key) const {
  spend(entries.size() / 16);
  for (const auto& [k, v] : entries)
    if (same_text(k, key)) return &v;
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (const std::string* text = key.string()) return named(*text);
  for (const auto& [k, v] : entries)
    if (equal(k, key)) return &v;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  require_hashable(key);
  if (const Value* old = find(key))
    *const_cast<Value*>(old) = std::move(value);
  else
    entries.emplace_back(std::move(key), std::move(value));
}

bool Arguments::has(size_t index, std::string_view name) const {
  return index < positional.size() ||
         std::ranges::any_of(named, [&](const auto& n) { return n.first == name; });
}

Value Arguments::get(size_t index, std::string_view name) const {
  if (index < positional.size()) return positional[index];
  for (const auto& [key, value] : named)
    if (key == name) return value;
  return {};
}

Value Arguments::get(size_t index, std::string_view name, Value otherwise) const {
  return has(index, name) ? get(index, name) : std::move(otherwise);
}

std::string Arguments::text(size_t index, std::string_view name) const {
  const Value v = get(index, name);
  if (const std::string* s = v.string()) return *s;
  require_defined(v);
  throw Failure(fmt::format("argument '{}' must be str, not {}", name, type_of(v)));
}

int64_t Arguments::integer(size_t index, std::string_view name, int64_t otherwise) const {
  if (!has(index, name)) return otherwise;
  const Value v = get(index, name);
  int64_t i = 0;
  if (v.integer(i)) return i;
  require_defined(v);
  throw Failure(fmt::format("argument '{}' must be int, not {}", name, type_of(v)));
}

bool Arguments::flag(size_t index, std::string_view name, bool otherwise) const {
  return has(index, name) ? truth(get(index, name)) : otherwise;
}

void Arguments::expect(std::string_view of, size_t least, size_t most,
                       std::initializer_list<std::string_view> names) const {
  if (positional.size() > most)
    throw Failure(fmt::format("{} takes at most {} argument{}, {} were given", of, most,
                              most == 1 ? "" : "s", positional.size()));
  if (positional.size() + named.size() < least)
    throw Failure(fmt::format("{} needs {} argument{}, {} were given", of, least,
                              least == 1 ? "" : "s", positional.size() + named.size()));
  for (const auto& [name, value] : named)
    if (std::ranges::find(names, name) == names.end())
      throw Failure(fmt::format("{} got an unexpected keyword argument '{}'", of, name));
}

void require_hashable(const Value& value) {
  if (value.dict() || (value.sequence() && value.sequence()->form == Sequence::Form::list))
    throw Failure(fmt::format("unhashable type: '{}'", type_of(value)));
}

void require_defined(const Value& value) {
  if (const auto* u = std::get_if<Undefined>(&value.data))
    throw Failure(u->message ? *u->message : "the value is undefined");
}

std::string type_of(const Value& value) {
  struct Name {
    std::string operator()(const Undefined&) { return "Undefined"; }
    std::string operator()(None) { return "NoneType"; }
    std::string operator()(bool) { return "bool"; }
    std::string operator()(int64_t) { return "int"; }
    std::string operator()(double) { return "float"; }
    std::string operator()(const std::shared_ptr<const std::string>&) { return "str"; }
    std::string operator()(const std::shared_ptr<Dict>&) { return "dict"; }
    std::string operator()(const std::shared_ptr<Object>& o) { return o->type(); }
    std::string operator()(const std::shared_ptr<const Function>&) { return "function"; }
    std::string operator()(const std::shared_ptr<Sequence>& s) {
      switch (s->form) {
        case Sequence::Form::list:
          return "list";
        case Sequence::Form::tuple:
          return "tuple";
        case Sequence::Form::range:
          return "range";
        case Sequence::Form::view:
          return "dict view";
        case Sequence::Form::generator:
          return "generator";
      }
      return "list";
    }
  };
  return std::visit(Name{}, value.data);
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto [end, error] =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string_view shortest(digits, static_cast<size_t>(end - digits));
  int exponent = 0;
  const size_t e = shortest.find('e');
  const char* from = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(from, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  char fixed[64];
  const auto fixed_end =
      std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string text(fixed, fixed_end.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string to_text(const Value& value) {
  if (const std::string* s = value.string()) return *s;
  if (value.is_undefined()) return {};
  std::string out;
  append_repr(value, out);
  return out;
}

void append_repr(const Value& value, std::string& out) {
  require_fits(out.size());
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (const bool* b = value.boolean()) {
    out += *b ? "True" : "False";
  } else if (const auto* whole = std::get_if<int64_t>(&value.data)) {
    fmt::format_to(std::back_inserter(out), "{}", *whole);
  } else if (const double* d = value.real()) {
    out += float_text(*d);
  } else if (const std::string* s = value.string()) {
    if (value.safe) out += "Markup(";
    append_quoted(*s, out);
    if (value.safe) out += ')';
  } else if (const Dict* dict = value.dict()) {
    const Nesting deeper(nesting);
    out += '{';
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(dict->entries[i].first, out);
      out += ": ";
      append_repr(dict->entries[i].second, out);
    }
    out += '}';
  } else if (const Sequence* list = value.sequence();
             list != nullptr && list->form <= Sequence::Form::tuple) {
    const Nesting deeper(nesting);
    const bool tuple = list->form == Sequence::Form::tuple;
    out += tuple ? '(' : '[';
    append_items(list->items, out);
    if (tuple && list->items.size() == 1) out += ',';
    out += tuple ? ')' : ']';
  } else {
    throw Failure(fmt::format("printing a value of type {} is not supported", type_of(value)));
  }
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const std::string* s = value.string()) return !s->empty();
  if (const Sequence* list = value.sequence())
    return list->form == Sequence::Form::generator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  double number = 0;
  return value.number(number) ? number != 0 : true;
}

bool equal(const Value& a, const Value& b) {
  spend(1);
  double x = 0, y = 0;
  if (a.number(x)) return b.number(y) && x == y;
  if (const std::string* s = a.string()) return spend_on(a), same_text(b, *s);
  if (a.is_undefined()) return b.is_undefined();
  if (a.is_none()) return b.is_none();
  const Nesting deeper(nesting);
  if (const Sequence* s = a.sequence(), *t = b.sequence(); s != nullptr && t != nullptr)
    return s == t || (s->form == t->form && s->form != Sequence::Form::generator &&
                      std::ranges::equal(s->items, t->items, equal));
  if (const Dict* s = a.dict(), *t = b.dict(); s != nullptr && t != nullptr)
    return s->entries.size() == t->entries.size() &&
           std::ranges::all_of(s->entries, [&](const auto& entry) {
             const Value* other = t->find(entry.first);
             return other != nullptr && equal(entry.second, *other);
           });
  if (const Function* f = a.function(), *g = b.function(); f != nullptr) return f == g;
  return a.object() != nullptr && a.object() == b.object();
}

bool less(const Value& a, const Value& b, const char* op) {
  require_defined(a);
  require_defined(b);
  spend(1);
  double x = 0, y = 0;
  if (a.number(x) && b.number(y)) return x < y;
  if (a.string() != nullptr && b.string() != nullptr) return spend_on(a), *a.string() < *b.string();
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (s == nullptr || t == nullptr || s->form != t->form || s->form > Sequence::Form::tuple)
    no_order(a, b, op);
  const Nesting deeper(nesting);
  for (size_t i = 0; i < std::min(s->items.size(), t->items.size()); ++i)
    if (!equal(s->items[i], t->items[i])) return less(s->items[i], t->items[i], op);
  return s->items.size() < t->items.size();
}

bool contains(const Value& container, const Value& wanted) {
  if (const std::string* text = container.string()) {
    spend_on(container);
    if (const std::string* part = wanted.string()) return text->find(*part) != text->npos;
    require_defined(wanted);
    throw Failure(
        fmt::format("'in <string>' requires string as left operand, not {}", type_of(wanted)));
  }
  if (const Dict* dict = container.dict()) {
    require_hashable(wanted);
    return dict->find(wanted) != nullptr;
  }
  if (container.is_undefined()) return false;
  if (container.sequence() == nullptr)
    throw Failure(fmt::format("argument of type '{}' is not iterable", type_of(container)));
  return std::ranges::any_of(iterate(container), [&](const Value& v) { return equal(v, wanted); });
}

size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* s = value.string()) return n_characters(*s);
  if (const Dict* dict = value.dict()) return dict->entries.size();
  if (const Sequence* list = value.sequence(); list && list->form != Sequence::Form::generator)
    return list->items.size();
  throw Failure(fmt::format("object of type '{}' has no len()", type_of(value)));
}

Values iterate(const Value& value) {
  spend_on(value);
  if (value.is_undefined()) return {};
  if (Sequence* list = value.sequence()) {
    if (list->form != Sequence::Form::generator) return list->items;
    return std::exchange(list->consumed, true) ? Values{} : list->items;
  }
  Values items;
  if (const std::string* text = value.string()) {
    require_fits(text->size() * sizeof(Value));
    for (size_t i = 0; i < text->size(); i += utf8_length((*text)[i]))
      items.emplace_back(text->substr(i, utf8_length((*text)[i])));
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else {
    throw Failure(fmt::format("'{}' object is not iterable", type_of(value)));
  }
  return items;
}

Value item(const Value& value, const Value& key) {
  if (value.string() != nullptr) spend_on(value);
  int64_t i = 0;
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  } else if (const Sequence* list = value.sequence();
             list && list->form <= Sequence::Form::range && key.integer(i)) {
    if (const int64_t at = index_in(i, list->items.size()); at >= 0)
      return list->items[static_cast<size_t>(at)];
  } else if (const std::string* text = value.string(); text && key.integer(i)) {
    const int64_t at = index_in(i, n_characters(*text));
    if (at >= 0)
      return marked_as(value,
                       substring(*text, static_cast<size_t>(at), static_cast<size_t>(at) + 1));
  }
  require_defined(value);
  if (const std::string* name = key.string()) return attribute(value, *name);
  std::string text;
  append_repr(key, text);
  return value.dict() != nullptr || value.is_none()
             ? missing(value, to_text(key))
             : Value::undefined(fmt::format("{} object has no element {}", type_of(value), text));
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const Sequence* list = value.sequence();
  const std::string* text = value.string();
  require_defined(value);
  if (text != nullptr) spend_on(value);
  if (text == nullptr && (list == nullptr || list->form > Sequence::Form::range))
    throw Failure(fmt::format("'{}' object has no slices", type_of(value)));
  const auto number = [](const Value& v, int64_t otherwise) {
    if (!v.is_none() && !v.integer(otherwise))
      throw Failure("slice indices must be integers or None");
    return otherwise;
  };
  const int64_t by = number(step, 1);
  if (by == 0) throw Failure("slice step cannot be zero");
  const Values characters = text != nullptr && by != 1 ? iterate(value) : Values{};
  const auto n = static_cast<int64_t>(text ? n_characters(*text) : list->items.size());
  const auto place = [&](const Value& v, int64_t otherwise) {
    if (v.is_none()) return otherwise;
    int64_t i = number(v, 0);
    if (i < 0) i += n;
    return std::clamp<int64_t>(i, by < 0 ? -1 : 0, by < 0 ? n - 1 : n);
  };
  const int64_t from = place(begin, by < 0 ? n - 1 : 0), to = place(end, by < 0 ? -1 : n);
  if (text != nullptr && by == 1)
    return marked_as(value, substring(*text, static_cast<size_t>(from),
                                      static_cast<size_t>(std::max(from, to))));
  Values items;
  std::string joined;
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
    const auto at = static_cast<size_t>(i);
    if (text != nullptr)
      joined += *characters[at].string();
    else
      items.push_back(list->items[at]);
  }
  return text != nullptr ? marked_as(value, std::move(joined))
                         : Value(std::move(items), list->form);
}

Value from_json(const io::OrderedJson& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})
    throw Failure(fmt::format("the integer {} is beyond 64 bits", json.get<uint64_t>()));
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_array()) {
    Values items;
    for (const auto& entry : json) items.push_back(from_json(entry));
    return items;
  }
  Dict dict;
  for (const auto& [key, entry] : json.items()) dict.set(key, from_json(entry));
  return dict;
}

namespace {

void append_json_text(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const char32_t c = decode_char(text.data() + i);
    const size_t n = utf8_length(text[i]);
    constexpr std::string_view kShort = "\b\f\n\r\t\"\\", kLetters = "bfnrt\"\\";
    if (const size_t at = c < 0x80 ? kShort.find(text[i]) : kShort.npos; at != kShort.npos)
      out.append({'\\', kLetters[at]});
    else if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000))
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint32_t>(c));
    else if (ascii && c >= 0x10000)
      fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}",
                     0xD800 + ((static_cast<uint32_t>(c) - 0x10000) >> 10),
                     0xDC00 + ((static_cast<uint32_t>(c) - 0x10000) & 0x3FF));
    else
      out += text.substr(i, n);
    i += n;
  }
  out += '"';
}

std::string json_key(const Value& key) {
  if (const std::string* s = key.string()) return *s;
  if (const bool* b = key.boolean()) return *b ? "true" : "false";
  if (key.is_none()) return "null";
  double number = 0;
  if (key.number(number)) return to_text(key);
  throw Failure(fmt::format("keys must be str, int, float, bool or None, not {}", type_of(key)));
}

}  // namespace

void append_json(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  require_fits(out.size());
  const Nesting deeper(nesting);
  const auto line = [&](int at) {
    if (!style.indented) return;
    out += '\n';
    for (int i = 0; i < at; ++i) out += style.indent;
  };
  if (value.is_none()) {
    out += "null";
  } else if (const bool* b = value.boolean()) {
    out += *b ? "true" : "false";
  } else if (const double* d = value.real()) {
    out += std::isfinite(*d) ? float_text(*d)
           : std::isnan(*d)  ? "NaN"
           : *d < 0          ? "-Infinity"
                             : "Infinity";
  } else if (std::holds_alternative<int64_t>(value.data)) {
    append_repr(value, out);
  } else if (const std::string* s = value.string()) {
    append_json_text(*s, style.ensure_ascii, out);
  } else if (const Sequence* list = value.sequence(); list && list->form <= Sequence::Form::tuple) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += style.item_separator;
      line(depth + 1);
      append_json(list->items[i], style, depth + 1, out);
    }
    if (!list->items.empty()) line(depth);
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict->entries) entries.push_back(&entry);
    if (style.sort_keys)
      std::ranges::stable_sort(
          entries, [](const auto* one, const auto* two) { return less(one->first, two->first); });
    out += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += style.item_separator;
      line(depth + 1);
      append_json_text(json_key(entries[i]->first), style.ensure_ascii, out);
      out += style.key_separator;
      append_json(entries[i]->second, style, depth + 1, out);
    }
    if (!entries.empty()) line(depth);
    out += '}';
  } else {
    throw Failure(fmt::format("Object of type {} is not JSON serializable", type_of(value)));
  }
}

namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  throw Failure(
      fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, type_of(a), type_of(b)));
}

[[noreturn]] void too_large() { throw Failure("expected an integer within 64 bits"); }

Value integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result))
      too_large();
    else if (base == 0 || base == 1)
      break;
    else if (base == -1)
      return exponent % 2 == 0 ? -result : result;
  return result;
}

Value real_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**" && (a != 0 || b >= 0)) return std::pow(a, b);
  if (b == 0 || op == "**") throw Failure("float division by zero");
  if (op == "/") return a / b;
  const double quotient = std::floor(a / b);
  if (op == "//") return quotient;
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value integer_arithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t r = 0;
  if (op == "+"   ? __builtin_add_overflow(a, b, &r)
      : op == "-" ? __builtin_sub_overflow(a, b, &r)
      : op == "*" ? __builtin_mul_overflow(a, b, &r)
                  : false)
    too_large();
  if (op == "+" || op == "-" || op == "*") return r;
  if (op == "**")
    return b >= 0 ? integer_power(a, b)
                  : real_arithmetic(op, static_cast<double>(a), static_cast<double>(b));
  if (b == 0) throw Failure(op == "/" ? "division by zero" : "integer division or modulo by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (a == INT64_MIN && b == -1) too_large();
  const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  return op == "//" ? quotient : a - quotient * b;
}

Value repeated(const Value& value, int64_t times) {
  const size_t n = times > 0 ? static_cast<size_t>(times) : 0;
  if (const std::string* text = value.string()) {
    if (!text->empty()) require_fits(n > kMostBytes ? n : n * text->size());
    std::string out;
    for (size_t i = 0; i < n && !text->empty(); ++i) out += *text;
    return marked_as(value, out);
  }
  const Sequence& list = *value.sequence();
  if (!list.items.empty()) require_fits(n > kMostBytes ? n : n * list.items.size() * sizeof(Value));
  Values items;
  for (size_t i = 0; i < n && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return {std::move(items), list.form};
}

}  // namespace

Value arithmetic(std::string_view op, const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.integer(i) && b.integer(j)) return integer_arithmetic(op, i, j);
  double x = 0, y = 0;
  if (a.number(x) && b.number(y)) return real_arithmetic(op, x, y);
  const auto is_list = [](const Value& v) {
    return v.sequence() != nullptr && v.sequence()->form <= Sequence::Form::tuple;
  };
  if (op == "%" && a.safe) throw Failure("formatting text that is marked safe is not supported");
  if (op == "%" && a.string() != nullptr) return format_percent(*a.string(), b);
  if (op == "*" && (a.string() != nullptr || is_list(a)) && b.integer(j)) return repeated(a, j);
  if (op == "*" && (b.string() != nullptr || is_list(b)) && a.integer(i)) return repeated(b, i);
  if (op != "+") unsupported(op, a, b);
  if (a.string() != nullptr && b.string() != nullptr) {
    require_fits(a.string()->size() + b.string()->size());
    // Jinja escapes text that is joined to text marked as safe.
    const auto part = [&](const Value& v) {
      return a.safe == b.safe || v.safe ? *v.string() : escaped(*v.string());
    };
    return marked_as(a.safe ? a : b, part(a) + part(b));
  }
  if (is_list(a) && is_list(b) && a.sequence()->form == b.sequence()->form) {
    Values items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return {std::move(items), a.sequence()->form};
  }
  require_defined(a);
  require_defined(b);
  if (a.string() != nullptr)
    throw Failure(fmt::format("can only concatenate str (not \"{}\") to str", type_of(b)));
  unsupported(op, a, b);
}

}  // namespace tandem::text::jinja
