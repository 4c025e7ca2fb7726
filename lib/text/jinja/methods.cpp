// Attributes of values: the methods of Python's str, dict and list that templates use.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "text/jinja/python_text.h"
#include "text/jinja/value.h"

namespace tandem::text::jinja {
namespace {

using Method = Value (*)(const Value& self, Arguments& a);
using Methods = std::unordered_map<std::string_view, Method>;

const std::string& text_of(const Value& self) { return *self.string(); }

Value strings(std::vector<std::string> parts) {
  Values items;
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return items;
}

/// The argument `chars` of strip, or `sep` of split: null where it is none.
template <class Use>
auto with_optional(Arguments& a, const char* name, const Use& use) {
  if (a.get(0, name, None{}).is_none()) return use(static_cast<const std::string*>(nullptr));
  const std::string text = a.text(0, name);
  return use(&text);
}

template <Side side>
Value strip_method(const Value& self, Arguments& a) {
  a.expect("strip", 0, 1);
  return with_optional(a, "chars", [&](const std::string* characters) {
    return Value(strip(text_of(self), characters, side));
  });
}

template <bool from_right>
Value split_method(const Value& self, Arguments& a) {
  a.expect("split", 0, 2, {"sep", "maxsplit"});
  return with_optional(a, "sep", [&](const std::string* separator) {
    return strings(split(text_of(self), separator, a.integer(1, "maxsplit", -1), from_right));
  });
}

/// The characters from argument 1 up to argument 2; false where the text ends before.
bool in_range(const Value& self, Arguments& a, std::string& part, size_t& begin) {
  const auto n = static_cast<int64_t>(n_characters(text_of(self)));
  const auto place = [&](size_t i, const char* name, int64_t otherwise) {
    const int64_t at = a.get(i, name, None{}).is_none() ? otherwise : a.integer(i, name, otherwise);
    return std::max<int64_t>(0, at < 0 ? at + n : at);
  };
  const int64_t from = place(1, "start", 0), to = std::min(n, place(2, "end", n));
  if (from > to) return false;
  begin = static_cast<size_t>(from);
  part = substring(text_of(self), begin, static_cast<size_t>(to));
  return true;
}

template <bool at_start>
Value affix_method(const Value& self, Arguments& a) {
  a.expect(at_start ? "startswith" : "endswith", 1, 3);
  const Value affix = a.get(0, "prefix");
  std::string part;
  size_t begin = 0;
  const bool inside = in_range(self, a, part, begin);
  const auto fits = [&](const Value& v) {
    if (v.string() == nullptr) {
      require_defined(v);
      throw Failure(fmt::format("{} first arg must be str or a tuple of str, not {}",
                                at_start ? "startswith" : "endswith", type_of(v)));
    }
    return inside && (at_start ? part.starts_with(*v.string()) : part.ends_with(*v.string()));
  };
  if (const Sequence* all = affix.sequence(); all && all->form == Sequence::Form::tuple)
    return std::ranges::any_of(all->items, fits);
  return fits(affix);
}

template <bool from_right, bool must>
Value find_method(const Value& self, Arguments& a) {
  a.expect("find", 1, 3);
  const std::string wanted = a.text(0, "sub");
  std::string part;
  size_t begin = 0;
  size_t at = std::string::npos;
  if (in_range(self, a, part, begin)) at = from_right ? part.rfind(wanted) : part.find(wanted);
  if (at == std::string::npos) {
    if (must) throw Failure("substring not found");
    return -1;
  }
  return begin + n_characters(std::string_view(part).substr(0, at));
}

Value count_method(const Value& self, Arguments& a) {
  a.expect("count", 1, 3);
  const std::string wanted = a.text(0, "sub");
  std::string part;
  size_t begin = 0;
  if (!in_range(self, a, part, begin)) return 0;
  if (wanted.empty()) return n_characters(part) + 1;
  int64_t n = 0;
  for (size_t at = 0; (at = part.find(wanted, at)) != part.npos; at += wanted.size()) ++n;
  return n;
}

template <bool from_right>
Value partition_method(const Value& self, Arguments& a) {
  a.expect("partition", 1, 1);
  const std::string& text = text_of(self);
  const std::string separator = a.text(0, "sep");
  if (separator.empty()) throw Failure("empty separator");
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  Values parts = from_right ? Values{"", "", text} : Values{text, "", ""};
  if (at != text.npos) parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  return {std::move(parts), Sequence::Form::tuple};
}

template <Side text_at>
Value pad_method(const Value& self, Arguments& a) {
  a.expect("ljust", 1, 2);
  const std::string fill = a.has(1, "fillchar") ? a.text(1, "fillchar") : " ";
  return padded(text_of(self), a.integer(0, "width", 0), fill, text_at);
}

Value zfill_method(const Value& self, Arguments& a) {
  a.expect("zfill", 1, 1);
  std::string text = text_of(self), sign;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) sign = text.substr(0, 1);
  text.erase(0, sign.size());
  return sign + padded(text, a.integer(0, "width", 0) - std::ssize(sign), "0", Side::right);
}

Value join_method(const Value& self, Arguments& a) {
  a.expect("join", 1, 1);
  std::string out;
  size_t i = 0;
  const Value parts = a.get(0, "iterable");
  for (const Value& part : iterate(parts)) {
    if (part.string() == nullptr) {
      require_defined(part);
      throw Failure(
          fmt::format("sequence item {}: expected str instance, {} found", i, type_of(part)));
    }
    out.append(i++ > 0 ? text_of(self) : "").append(*part.string());
    require_fits(out.size());
  }
  return out;
}

Value replace_method(const Value& self, Arguments& a) {
  a.expect("replace", 2, 3, {"count"});
  return replace(text_of(self), a.text(0, "old"), a.text(1, "new"), a.integer(2, "count", -1));
}

template <Class kind>
Value class_method(const Value& self, Arguments& a) {
  a.expect("is...", 0, 0);
  return is_all(text_of(self), kind);
}
template <bool wanted>
Value cased_method(const Value& self, Arguments& a) {
  a.expect("is...", 0, 0);
  return is_cased(text_of(self), wanted);
}
template <std::string (*convert)(std::string_view)>
Value convert_method(const Value& self, Arguments& a) {
  a.expect("a conversion of case", 0, 0);
  return convert(text_of(self));
}

const Methods& string_methods() {
  static const Methods methods = {
      {"strip", strip_method<Side::both>},
      {"lstrip", strip_method<Side::left>},
      {"rstrip", strip_method<Side::right>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"startswith", affix_method<true>},
      {"endswith", affix_method<false>},
      {"find", find_method<false, false>},
      {"rfind", find_method<true, false>},
      {"index", find_method<false, true>},
      {"rindex", find_method<true, true>},
      {"count", count_method},
      {"partition", partition_method<false>},
      {"rpartition", partition_method<true>},
      {"ljust", pad_method<Side::left>},
      {"rjust", pad_method<Side::right>},
      {"center", pad_method<Side::both>},
      {"zfill", zfill_method},
      {"join", join_method},
      {"replace", replace_method},
      {"upper", convert_method<upper>},
      {"lower", convert_method<lower>},
      {"title", convert_method<title>},
      {"capitalize", convert_method<capitalize>},
      {"swapcase", convert_method<swap_case>},
      {"isalpha", class_method<Class::alpha>},
      {"isdigit", class_method<Class::digit>},
      {"isalnum", class_method<Class::alnum>},
      {"isspace", class_method<Class::space>},
      {"isnumeric", class_method<Class::numeric>},
      {"isdecimal", class_method<Class::decimal>},
      {"isupper", cased_method<true>},
      {"islower", cased_method<false>},
      {"splitlines",
       [](const Value& self, Arguments& a) {
         a.expect("splitlines", 0, 1, {"keepends"});
         return strings(split_lines(text_of(self), a.flag(0, "keepends", false)));
       }},
      {"removeprefix",
       [](const Value& self, Arguments& a) {
         a.expect("removeprefix", 1, 1);
         const std::string& text = text_of(self);
         const std::string prefix = a.text(0, "prefix");
         return Value(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
       }},
      {"removesuffix",
       [](const Value& self, Arguments& a) {
         a.expect("removesuffix", 1, 1);
         const std::string& text = text_of(self);
         const std::string suffix = a.text(0, "suffix");
         return Value(text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
       }},
      {"format",
       [](const Value& self, Arguments& a) { return Value(format_fields(text_of(self), a)); }},
  };
  return methods;
}

const Methods& dict_methods() {
  static const Methods methods = {
      {"get",
       [](const Value& self, Arguments& a) {
         a.expect("get", 1, 2);
         const Value* found = self.dict()->find(a.get(0, "key"));
         return found != nullptr ? *found : a.get(1, "default", None{});
       }},
      {"items",
       [](const Value& self, Arguments& a) {
         a.expect("items", 0, 0);
         Values pairs;
         for (const auto& [key, value] : self.dict()->entries)
           pairs.emplace_back(Values{key, value}, Sequence::Form::tuple);
         return Value(std::move(pairs), Sequence::Form::view);
       }},
      {"keys",
       [](const Value& self, Arguments& a) {
         a.expect("keys", 0, 0);
         return Value(iterate(self), Sequence::Form::view);
       }},
      {"values",
       [](const Value& self, Arguments& a) {
         a.expect("values", 0, 0);
         Values values;
         for (const auto& entry : self.dict()->entries) values.push_back(entry.second);
         return Value(std::move(values), Sequence::Form::view);
       }},
      {"copy",
       [](const Value& self, Arguments& a) {
         a.expect("copy", 0, 0);
         return Value(*self.dict());
       }},
  };
  return methods;
}

const Methods& list_methods() {
  static const Methods methods = {
      {"count",
       [](const Value& self, Arguments& a) {
         a.expect("count", 1, 1);
         const Value wanted = a.get(0, "value");
         return Value(static_cast<int64_t>(std::ranges::count_if(
             self.sequence()->items, [&](const Value& v) { return equal(v, wanted); })));
       }},
      {"index",
       [](const Value& self, Arguments& a) {
         a.expect("index", 1, 1);
         const Value wanted = a.get(0, "value");
         const Values& items = self.sequence()->items;
         const auto it =
             std::ranges::find_if(items, [&](const Value& v) { return equal(v, wanted); });
         if (it == items.end()) throw Failure(to_text(wanted) + " is not in list");
         return Value(static_cast<int64_t>(it - items.begin()));
       }},
      {"copy",
       [](const Value& self, Arguments& a) {
         a.expect("copy", 0, 0);
         return Value(self.sequence()->items);
       }},
  };
  return methods;
}

constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
// Methods of Python that are not here: better refused than taken for a missing key.
constexpr std::array<std::string_view, 11> kOtherMethods = {
    "encode",       "expandtabs",  "translate", "maketrans", "format_map", "casefold",
    "isidentifier", "isprintable", "istitle",   "isascii",   "fromkeys"};

constexpr std::array<std::string_view, 10> kNumberMembers = {
    "real",       "imag",       "numerator", "denominator",      "conjugate",
    "is_integer", "bit_length", "bit_count", "as_integer_ratio", "hex"};

template <class Names>
bool among(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

bool Object::assign(const std::string&, Value) { return false; }

Value Object::call(Interpreter&, Arguments&) {
  throw Failure(fmt::format("'{}' object is not callable", type()));
}

Value attribute(const Value& value, std::string_view name) {
  require_defined(value);
  if (Object* object = value.object()) {
    const Value found = object->attribute(name);
    return !found.is_undefined() ? found
                                 : Value::undefined(fmt::format("'{} object' has no attribute '{}'",
                                                                object->type(), name));
  }
  const Sequence* sequence = value.sequence();
  const bool list = sequence != nullptr && sequence->form <= Sequence::Form::tuple;
  const bool mutable_list = list && sequence->form == Sequence::Form::list;
  const Methods* methods = value.string() ? &string_methods()
                           : value.dict() ? &dict_methods()
                           : list         ? &list_methods()
                                          : nullptr;
  if (methods != nullptr) {
    if (const auto it = methods->find(name); it != methods->end())
      return Function{std::string(name),
                      [self = value, method = it->second](Interpreter&, Arguments& a) {
                        const auto is_text = [](const Value& v) { return v.string() != nullptr; };
                        if (self.safe && std::ranges::any_of(a.positional, is_text))
                          throw Failure(
                              "text arguments of a method of text that is marked safe "
                              "are not supported");
                        spend_on(self);
                        return marked_as(self, method(self, a));
                      },
                      {},
                      depth_over({value})};
    if ((value.dict() && among(kDictChanges, name)) ||
        (mutable_list && among(kListChanges, name)) || name.starts_with("__"))
      return Value::undefined(
          fmt::format("access to attribute '{}' of '{}' object is unsafe: a "
                      "chat template cannot change lists or dicts",
                      name, type_of(value)));
    if ((value.string() && among(kOtherMethods, name)) || (value.dict() && name == "fromkeys"))
      throw Failure(fmt::format("method '{}' of {} is not supported", name, type_of(value)));
  }
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->named(name)) return *found;
  if (list && sequence->items.size() == 2 && (name == "grouper" || name == "list"))
    return sequence->items[name == "list" ? 1 : 0];  // a group of groupby
  if (const Function* f = value.function(); f != nullptr && !f->attributes.entries.empty()) {
    const Value* found = f->attributes.named(name);
    return found != nullptr ? *found
                            : Value::undefined(fmt::format("macro has no attribute '{}'", name));
  }
  double number = 0;
  if ((value.number(number) && among(kNumberMembers, name)) || value.function() != nullptr)
    throw Failure(fmt::format("attribute '{}' of {} is not supported", name, type_of(value)));
  return Value::undefined(
      value.is_none() ? fmt::format("'None' has no attribute '{}'", name)
                      : fmt::format("'{} object' has no attribute '{}'", type_of(value), name));
}

namespace {

/// A number by a printf directive such as "%-5.2f".
template <class T>
std::string printed(const std::string& directive, T number) {
  const int n = std::snprintf(nullptr, 0, directive.c_str(), number);
  std::string out(static_cast<size_t>(std::max(n, 0)), '\0');
  std::snprintf(out.data(), out.size() + 1, directive.c_str(), number);
  return out;
}

/// Digits of a width or precision, which would else build texts of any length.
std::string digits_at(std::string_view text, size_t& i) {
  const size_t begin = i;
  while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
  if (i - begin > 5) throw Failure("expected a format with a width of at most 99999");
  return std::string(text.substr(begin, i - begin));
}

}  // namespace

std::string format_percent(std::string_view pattern, const Value& values) {
  const Sequence* tuple = values.sequence();
  if (tuple != nullptr && tuple->form != Sequence::Form::tuple) tuple = nullptr;
  size_t used = 0;
  const auto next = [&]() -> Value {
    if (tuple == nullptr ? used > 0 : used >= tuple->items.size())
      throw Failure("not enough arguments for format string");
    return tuple == nullptr ? (++used, values) : tuple->items[used++];
  };
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      out += pattern[i];
      continue;
    }
    if (++i == pattern.size()) throw Failure("incomplete format");
    std::optional<Value> named;
    if (pattern[i] == '(') {
      const size_t close = pattern.find(')', i);
      if (close == pattern.npos) throw Failure("incomplete format key");
      if (values.dict() == nullptr) throw Failure("format requires a mapping");
      named = item(values, std::string(pattern.substr(i + 1, close - i - 1)));
      used = 1;
      i = close + 1;
    }
    std::string directive = "%";
    while (i < pattern.size() && std::string_view("-+ 0#").find(pattern[i]) != pattern.npos)
      directive += pattern[i++];
    const std::string flags = directive, width = digits_at(pattern, i);
    directive += width;
    std::optional<std::string> precision;
    if (i < pattern.size() && pattern[i] == '.') {
      precision = digits_at(pattern, ++i);
      directive += "." + *precision;
    }
    if (i == pattern.size()) throw Failure("incomplete format");
    const char kind = pattern[i];
    if (kind == '%') {
      out += '%';
      continue;
    }
    const Value v = named ? *named : next();
    double real = 0;
    int64_t whole = 0;
    if (kind == 's' || kind == 'r') {
      std::string text;
      kind == 's' ? void(text = to_text(v)) : append_repr(v, text);
      if (precision) text = substring(text, 0, precision->empty() ? 0 : std::stoul(*precision));
      const bool left = flags.find('-') != flags.npos;
      out +=
          padded(text, width.empty() ? 0 : std::stol(width), " ", left ? Side::left : Side::right);
    } else if (std::string_view("diuxXo").find(kind) != std::string_view::npos) {
      if (!v.integer(whole)) {
        if (v.real() == nullptr || std::string_view("xXo").find(kind) != std::string_view::npos)
          throw Failure(fmt::format("%{} format: a number is required, not {}", kind, type_of(v)));
        constexpr double kLargest = 9.2e18;
        if (!(std::abs(*v.real()) < kLargest))
          throw Failure(fmt::format("%{} format: a number within 64 bits is required", kind));
        whole = static_cast<int64_t>(*v.real());
      }
      const char letter = kind == 'u' || kind == 'i' ? 'd' : kind;
      out += printed(directive + "l" + letter, static_cast<long>(whole));
    } else if (std::string_view("fFeEgG").find(kind) != std::string_view::npos) {
      if (!v.number(real)) throw Failure(fmt::format("must be real number, not {}", type_of(v)));
      out += printed(directive + kind, real);
    } else {
      throw Failure(fmt::format("unsupported format character '{}'", kind));
    }
    require_fits(out.size());
  }
  if (tuple != nullptr ? used < tuple->items.size() : used == 0 && values.dict() == nullptr)
    throw Failure("not all arguments converted during string formatting");
  return out;
}

namespace {

std::string formatted(const Value& v, std::string spec, char conversion) {
  std::string text;
  if (conversion == 'r')
    append_repr(v, text);
  else
    text = to_text(v);
  if (spec.empty()) return text;
  size_t i = 0;
  for (; i < spec.size(); ++i)
    if (spec[i] >= '0' && spec[i] <= '9') digits_at(spec, i);
  try {
    const std::string pattern = "{:" + spec + "}";
    if (conversion != 0 || v.string() != nullptr) return fmt::format(fmt::runtime(pattern), text);
    if (const auto* whole = std::get_if<int64_t>(&v.data)) {
      if (std::string_view("eEfFgG").find(spec.back()) != std::string_view::npos)
        return fmt::format(fmt::runtime(pattern), static_cast<double>(*whole));
      return fmt::format(fmt::runtime(pattern), *whole);
    }
    if (const double* real = v.real()) return fmt::format(fmt::runtime(pattern), *real);
  } catch (const fmt::format_error&) {
  }
  throw Failure(fmt::format("format '{}' of {} is not supported", spec, type_of(v)));
}

}  // namespace

std::string format_fields(std::string_view pattern, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if ((c == '{' || c == '}') && i + 1 < pattern.size() && pattern[i + 1] == c)
      ++i;
    else if (c == '}')
      throw Failure("Single '}' encountered in format string");
    else if (c == '{') {
      const size_t close = pattern.find('}', i);
      if (close == pattern.npos) throw Failure("expected '}' before end of string");
      std::string name(pattern.substr(i + 1, close - i - 1)), spec;
      if (const size_t colon = name.find(':'); colon != name.npos) {
        spec = name.substr(colon + 1);
        name.resize(colon);
      }
      char conversion = 0;
      if (name.size() >= 2 && name[name.size() - 2] == '!') {
        conversion = name.back();
        name.resize(name.size() - 2);
      }
      if (name.find_first_of(".[{") != name.npos || spec.find('{') != spec.npos)
        throw Failure(fmt::format("format field '{}' is not supported", name));
      const bool digits = std::ranges::all_of(name, [](char d) { return d >= '0' && d <= '9'; });
      if (digits && name.size() > 5) throw Failure("Replacement index out of range");
      const size_t index = !digits ? SIZE_MAX : name.empty() ? next++ : std::stoul(name);
      if (digits && index >= arguments.positional.size())
        throw Failure(
            fmt::format("Replacement index {} out of range for positional args tuple", index));
      if (!digits && !arguments.has(SIZE_MAX, name)) throw Failure("KeyError: '" + name + "'");
      out += formatted(arguments.get(index, name), spec, conversion);
      require_fits(out.size());
      i = close;
      continue;
    }
    out += pattern[i];
  }
  return out;
}

}  // namespace tandem::text::jinja
