#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/json_fwd.h"

namespace tandem::text::jinja {

/// An exception of the template's language; the evaluator adds the place in the template.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// raise_exception(message): the author refuses the chat.
struct Raised : Failure {
  using Failure::Failure;
};

class Value;
class Interpreter;
struct Arguments;
using Values = std::vector<Value>;

/// A name or key that is not there. Printing it writes nothing; using it fails with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct None {};

/// A list, a tuple, or what Python computes lazily.
struct Sequence {
  enum class Form : uint8_t { list, tuple, range, view, generator };
  Values items;
  Form form = Form::list;
  bool consumed = false;  // of a generator, which can be walked once
};

/// A mapping in insertion order. Chats have few keys: a linear search is fastest.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* named(std::string_view key) const;
  void set(Value key, Value value);
};

/// An object with its own methods and attributes: namespace, loop, cycler.
struct Object {
  virtual ~Object() = default;
  virtual const char* type() const = 0;
  /// Undefined: there is no such attribute.
  virtual Value attribute(std::string_view name) = 0;
  /// Lets go of other values, so that none of them ends inside another.
  virtual void clear() {}
  /// False: its attributes cannot be set.
  virtual bool assign(const std::string& name, Value value);
  /// errors   Failure: it is no function
  virtual Value call(Interpreter& interpreter, Arguments& arguments);
};

struct Function;

/// A value as Python has it. Copies share strings and containers, which templates cannot change.
class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                   std::shared_ptr<Sequence>, std::shared_ptr<Dict>, std::shared_ptr<Object>,
                   std::shared_ptr<const Function>>;
  Value() = default;  // undefined
  Value(None) : data(None{}) {}
  Value(bool v) : data(v) {}
  Value(int v) : data(int64_t{v}) {}
  Value(int64_t v) : data(v) {}
  Value(size_t v) : data(static_cast<int64_t>(v)) {}
  Value(double v) : data(v) {}
  Value(std::string v) : data(std::make_shared<const std::string>(std::move(v))) {}
  Value(std::string_view v) : Value(std::string(v)) {}
  Value(const char* v) : Value(std::string(v)) {}
  /// errors   Failure, here and below: nested too deeply
  Value(Values items, Sequence::Form form = Sequence::Form::list);
  Value(Dict v);
  Value(std::shared_ptr<Object> v) : data(std::move(v)) {}
  Value(Function v);
  static Value undefined(std::string message);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  const bool* boolean() const { return std::get_if<bool>(&data); }
  const double* real() const { return std::get_if<double>(&data); }
  const std::string* string() const { return shared<const std::string>(); }
  Sequence* sequence() const { return shared<Sequence>(); }
  Dict* dict() const { return shared<Dict>(); }
  Object* object() const { return shared<Object>(); }
  const Function* function() const { return shared<const Function>(); }
  /// An int, or a bool, which Python counts as one.
  bool integer(int64_t& out) const;
  /// An int, bool or float.
  bool number(double& out) const;

  Data data;
  bool safe = false;   // of a string: marked by the filters safe and escape
  uint16_t depth = 0;  // containers inside one another, which end one inside the other

 private:
  template <class T>
  T* shared() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data);
    return p == nullptr ? nullptr : p->get();
  }
};

/// Counts the work of walking over a value once. errors   as spend()
void spend_on(const Value& value);
/// `made` of `from`: text of a text that is marked safe is marked, too.
Value marked_as(const Value& from, Value made);

struct Function {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  Dict attributes = {};  // of a macro
  uint16_t depth = 0;    // of the values that it holds
};

/// One more than the deepest of these. errors   Failure: too deep
uint16_t depth_over(const Values& values);

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `index` or of that name; undefined where it is not given.
  Value get(size_t index, std::string_view name) const;
  Value get(size_t index, std::string_view name, Value otherwise) const;
  bool has(size_t index, std::string_view name) const;
  std::string text(size_t index, std::string_view name) const;
  int64_t integer(size_t index, std::string_view name, int64_t otherwise) const;
  bool flag(size_t index, std::string_view name, bool otherwise) const;
  /// errors   Failure: fewer than `least` or more than `most` arguments, or a name not among these
  void expect(std::string_view of, size_t least, size_t most,
              std::initializer_list<std::string_view> names = {}) const;
};

/// str(): what printing writes.
std::string to_text(const Value& value);
/// repr(), as a list prints its items.
void append_repr(const Value& value, std::string& out);
/// A float as Python writes it: the fewest digits that read back the same.
std::string float_text(double value);

/// "str", "int", "dict", ...
std::string type_of(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
/// errors   Failure: the two have no order
bool less(const Value& a, const Value& b, const char* op = "<");
bool contains(const Value& container, const Value& item);
/// Characters of a string, items of a sequence, keys of a mapping.
/// errors   Failure: it has no length
size_t length(const Value& value);
/// Lists what a loop over the value walks; a generator is empty afterwards.
/// errors   Failure: it cannot be iterated
Values iterate(const Value& value);
/// errors   Failure: the value cannot be the key of a dict
void require_hashable(const Value& value);
/// errors   Failure: `value` is undefined, with its message
void require_defined(const Value& value);

/// `left op right`, of + - * / // % **.
Value arithmetic(std::string_view op, const Value& left, const Value& right);

/// value.name: an attribute, else the item of that name, else undefined.
Value attribute(const Value& value, std::string_view name);
/// value[key]: the item, else the attribute of that name, else undefined.
Value item(const Value& value, const Value& key);
/// value[begin:end:step], each of them perhaps none.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);

/// json.dumps with ensure_ascii, indent (a string, or none), separators and sort_keys.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false, indented = false;
  std::string indent = {}, item_separator = ", ", key_separator = ": ";
};
void append_json(const Value& value, const JsonStyle& style, int depth, std::string& out);

Value from_json(const io::OrderedJson& json);

/// Python's str.format and `%` of strings.
std::string format_fields(std::string_view pattern, const Arguments& arguments);
std::string format_percent(std::string_view pattern, const Value& values);

}  // namespace tandem::text::jinja
