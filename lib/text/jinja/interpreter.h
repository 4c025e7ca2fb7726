#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace tandem::text::jinja {

/// Variables by name. A block that opens a scope sees those around it; its own end with it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names = {};

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

/// Evaluates one template once. Values that it makes live no longer than it does.
class Interpreter {
 public:
  /// date     what strftime_now writes, YYYY-MM-DD
  Interpreter(const std::vector<std::pair<std::string, Value>>& variables, std::string_view date);

  /// errors   Failure, at position()
  void run(const Block& block) { execute(block, root_); }

  ~Interpreter();

  /// Keeps an object that can change until the end.
  void keep(std::shared_ptr<Object> object) { kept_objects_.push_back(std::move(object)); }

  const std::string& text() const { return root_text_; }
  /// Byte ranges of `{% generation %}` blocks.
  const std::vector<std::pair<size_t, size_t>>& generations() const { return generations_; }
  Position position() const { return at_; }
  std::string_view date() const { return date_; }
  /// True once strftime_now was called: the text then depends on the date.
  bool used_date = false;

  Value call(const Value& callee, Arguments& arguments);
  /// errors   Failure: there is no filter or test of this name
  Value filter(const std::string& name, Arguments& arguments);
  bool test(const std::string& name, Arguments& arguments);

 private:
  friend struct Loop;
  enum class Flow : uint8_t { next, breaks, continues };
  struct ScopeHold;
  struct Depth;
  struct Nested;

  Flow execute(const Block& block, Scope& scope);
  Flow execute(const Statement& s, Scope& scope);
  Flow execute_loop(const Statement& s, Scope& scope);
  void walk(const Statement& s, Values items, int depth, Scope& scope);
  /// Returns what a block writes.
  std::string captured(const Block& block, Scope& scope);
  void write(std::string_view text);
  void assign(const Expression& target, Value value, Scope& scope);
  /// A macro, or the body of a call block.
  Value function(const Statement& s, Scope& scope, bool caller);
  Value call_function(const Statement& s, Scope& around, bool caller, Arguments& arguments);

  Value evaluate(const Expression& e, Scope& scope);
  Value compute(const Expression& e, Scope& scope);
  Value compare(const Expression& e, Scope& scope);
  Value filtered(const Expression& e, Value input, Scope& scope);
  Value optional(const ExpressionPtr& e, Scope& scope);
  void add_arguments(const CallArguments& from, Scope& scope, Arguments& to);
  /// Counts the bytes of all values, and refuses a template that builds without end.
  Value counted(Value value);

  std::vector<std::shared_ptr<Object>> kept_objects_;
  std::deque<Scope> scopes_;
  size_t kept_ = 0;  // scopes that functions refer to
  Scope& root_;
  std::string root_text_;
  std::string* out_ = &root_text_;
  std::vector<std::pair<size_t, size_t>> generations_;
  std::string_view date_;
  Position at_;
  int depth_ = 0, nested_ = 0;
  size_t built_ = 0;
};

// Jinja's filters, tests and global functions. Argument 0 of a filter or test is its input.
using Builtin = Value (*)(Interpreter&, Arguments&);

inline const Value& input(const Arguments& a) { return a.positional.at(0); }

/// Null: there is none of this name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
/// Undefined: there is none of this name.
Value global_function(std::string_view name);

/// "no filter named 'x'", or that it is not supported where Jinja has one.
std::string unknown_name(const char* what, const std::string& name);

}  // namespace tandem::text::jinja
