#include <fmt/format.h>

#include <ctime>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace tandem::text::jinja {
namespace {

const Value& other(const Arguments& a) {
  if (a.positional.size() != 2)
    throw Failure(fmt::format("the test needs 1 argument, {} were given", a.positional.size() - 1));
  return a.positional[1];
}
bool has_remainder(const Arguments& a, const Value& divisor, const Value& rest) {
  return equal(arithmetic("%", input(a), divisor), rest);
}

using S = Sequence::Form;

bool has_items(const Value& v) {
  return v.sequence() || v.string() || v.dict() || v.is_undefined();
}

const std::unordered_map<std::string_view, Builtin>& tests() {
#define TANDEM_TEST(condition) [](Interpreter&, Arguments& a) { return Value(condition); }
  static const Builtin eq = TANDEM_TEST(equal(input(a), other(a)));
  static const Builtin ne = TANDEM_TEST(!equal(input(a), other(a)));
  static const Builtin lt = TANDEM_TEST(less(input(a), other(a)));
  static const Builtin gt = TANDEM_TEST(less(other(a), input(a), ">"));
  static const Builtin le =
      TANDEM_TEST(less(input(a), other(a), "<=") || equal(input(a), other(a)));
  static const Builtin ge =
      TANDEM_TEST(less(other(a), input(a), ">=") || equal(input(a), other(a)));
  static const std::unordered_map<std::string_view, Builtin> table = {
      {"defined", TANDEM_TEST(!input(a).is_undefined())},
      {"undefined", TANDEM_TEST(input(a).is_undefined())},
      {"none", TANDEM_TEST(input(a).is_none())},
      {"boolean", TANDEM_TEST(input(a).boolean() != nullptr)},
      {"true", TANDEM_TEST(input(a).boolean() && *input(a).boolean())},
      {"false", TANDEM_TEST(input(a).boolean() && !*input(a).boolean())},
      {"integer", TANDEM_TEST(std::holds_alternative<int64_t>(input(a).data))},
      {"float", TANDEM_TEST(input(a).real() != nullptr)},
      {"number", TANDEM_TEST(input(a).real() || input(a).boolean() ||
                             std::holds_alternative<int64_t>(input(a).data))},
      {"string", TANDEM_TEST(input(a).string() != nullptr)},
      {"mapping", TANDEM_TEST(input(a).dict() != nullptr)},
      {"iterable", TANDEM_TEST(has_items(input(a)))},
      {"sequence", TANDEM_TEST(has_items(input(a)) &&
                               (!input(a).sequence() || input(a).sequence()->form <= S::range))},
      {"callable", TANDEM_TEST(input(a).function() || input(a).is_undefined())},
      {"sameas", TANDEM_TEST(input(a).data.index() == other(a).data.index() &&
                             (!input(a).sequence() || input(a).sequence() == other(a).sequence()) &&
                             (!input(a).dict() || input(a).dict() == other(a).dict()) &&
                             equal(input(a), other(a)))},
      {"lower", TANDEM_TEST(is_cased(to_text(input(a)), false))},
      {"upper", TANDEM_TEST(is_cased(to_text(input(a)), true))},
      {"escaped", TANDEM_TEST((input(a), false))},
      {"in", TANDEM_TEST(contains(other(a), input(a)))},
      {"odd", TANDEM_TEST(has_remainder(a, 2, 1))},
      {"even", TANDEM_TEST(has_remainder(a, 2, 0))},
      {"divisibleby", TANDEM_TEST(has_remainder(a, other(a), 0))},
      {"filter", TANDEM_TEST(find_filter(to_text(input(a))) != nullptr)},
      {"test", TANDEM_TEST(find_test(to_text(input(a))) != nullptr)},
      {"eq", eq},
      {"equalto", eq},
      {"==", eq},
      {"ne", ne},
      {"!=", ne},
      {"lt", lt},
      {"lessthan", lt},
      {"<", lt},
      {"gt", gt},
      {"greaterthan", gt},
      {">", gt},
      {"le", le},
      {"<=", le},
      {"ge", ge},
      {">=", ge},
  };
#undef TANDEM_TEST
  return table;
}

struct Namespace final : Object {
  Dict values;
  const char* type() const override { return "Namespace"; }
  void clear() override { values.entries.clear(); }
  Value attribute(std::string_view name) override {
    const Value* found = values.named(name);
    return found != nullptr ? *found : Value();
  }
  bool assign(const std::string& name, Value value) override {
    if (name.starts_with('_'))
      throw Failure("a namespace does not support '" + name +
                    "': expected a name without a leading underscore");
    values.set(name, std::move(value));
    return true;
  }
};

struct Cycler final : Object, std::enable_shared_from_this<Cycler> {
  Values items;
  size_t at = 0;
  const char* type() const override { return "Cycler"; }
  void clear() override { items.clear(); }
  Value attribute(std::string_view name) override {
    const auto self = shared_from_this();
    if (name == "current") return items[at];
    if (name == "next")
      return Function{"next", [self](Interpreter&, Arguments&) {
                        const Value v = self->items[self->at];
                        self->at = (self->at + 1) % self->items.size();
                        return v;
                      }};
    if (name == "reset")
      return Function{"reset", [self](Interpreter&, Arguments&) {
                        self->at = 0;
                        return Value(None{});
                      }};
    return {};
  }
};

Dict dict_of(const Arguments& a) {
  Dict dict;
  for (const Value& from : a.positional) {
    if (from.dict() != nullptr) {
      for (const auto& [key, value] : from.dict()->entries) dict.set(key, value);
      continue;
    }
    for (const Value& pair : iterate(from)) {
      const Values two = iterate(pair);
      if (two.size() != 2) throw Failure("dict: expected pairs of a key and a value");
      dict.set(two[0], two[1]);
    }
  }
  for (const auto& [name, value] : a.named) dict.set(name, value);
  return dict;
}

Value make_namespace(Interpreter& interpreter, Arguments& a) {
  const auto made = std::make_shared<Namespace>();
  interpreter.keep(made);
  for (auto& [key, value] : dict_of(a).entries) made->assign(to_text(key), std::move(value));
  return std::shared_ptr<Object>(made);
}

Value make_range(Interpreter&, Arguments& a) {
  a.expect("range", 1, 3);
  const bool one = a.positional.size() == 1;
  const int64_t begin = one ? 0 : a.integer(0, "start", 0), end = a.integer(one ? 0 : 1, "stop", 0),
                step = a.integer(2, "step", 1);
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  constexpr __int128 kMost = 100'000;  // as Jinja's sandbox
  const __int128 n = step > 0 ? (__int128{end} - begin + step - 1) / step
                              : (__int128{begin} - end - step - 1) / -__int128{step};
  if (n > kMost) throw Failure("Range too big. The sandbox blocks ranges larger than 100000.");
  Values items;
  for (int64_t i = 0, at = begin; i < n; ++i, at += step) items.emplace_back(at);
  return {std::move(items), Sequence::Form::range};
}

Value strftime_now(Interpreter& interpreter, Arguments& a) {
  a.expect("strftime_now", 1, 1, {"format"});
  const std::string format = a.text(0, "format");
  std::tm day{};
  const std::string date(interpreter.date());
  if (::strptime(date.c_str(), "%Y-%m-%d", &day) == nullptr)
    throw Failure("expected a date of the form YYYY-MM-DD, found '" + date + "'");
  day.tm_isdst = 0;
  interpreter.used_date = true;
  require_fits(format.size() * 64);
  std::string out(format.size() * 64 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &day));
  return out;
}

const std::unordered_map<std::string_view, Value>& globals() {
  const auto entry = [](const char* name, Builtin f) {
    return std::pair<std::string_view, Value>{name, Function{name, f}};
  };
  static const std::unordered_map<std::string_view, Value> table = {
      entry("range", make_range),
      entry("namespace", make_namespace),
      entry("strftime_now", strftime_now),
      entry("dict", [](Interpreter&, Arguments& a) { return Value(dict_of(a)); }),
      entry("raise_exception",
            [](Interpreter&, Arguments& a) -> Value {
              a.expect("raise_exception", 1, 1, {"message"});
              throw Raised(to_text(a.get(0, "message")));
            }),
      entry("joiner",
            [](Interpreter&, Arguments& a) {
              a.expect("joiner", 0, 1, {"sep"});
              const Value separator = a.get(0, "sep", ", ");
              const auto used = std::make_shared<bool>(false);
              return Value(Function{"joiner",
                                    [separator, used](Interpreter&, Arguments&) {
                                      return std::exchange(*used, true) ? separator : Value("");
                                    },
                                    {},
                                    depth_over({separator})});
            }),
      entry("cycler",
            [](Interpreter& interpreter, Arguments& a) {
              if (a.positional.empty()) throw Failure("at least one item has to be provided");
              const auto made = std::make_shared<Cycler>();
              interpreter.keep(made);
              made->items = a.positional;
              return Value(std::shared_ptr<Object>(made));
            }),
  };
  return table;
}

}  // namespace

Builtin find_test(std::string_view name) {
  const auto it = tests().find(name);
  return it == tests().end() ? nullptr : it->second;
}

Value global_function(std::string_view name) {
  const auto it = globals().find(name);
  return it == globals().end() ? Value() : it->second;
}

}  // namespace tandem::text::jinja
