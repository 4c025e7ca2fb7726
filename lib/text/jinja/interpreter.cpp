#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/python_text.h"

namespace tandem::text::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kMostNested = 1000;                 // statements and expressions in one another
constexpr int kDeepestCalls = 100;                // calls of macros and recursive loops
constexpr size_t kMostBuilt = size_t{512} << 20;  // bytes of all texts and lists together

bool compares(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "<") return less(a, b, "<");
  if (op == ">") return less(b, a, ">");
  return op == "<=" ? less(a, b, "<=") || equal(a, b) : less(b, a, ">=") || equal(a, b);
}

void spend_on(const Arguments& arguments) {
  for (const Value& v : arguments.positional) spend_on(v);
}

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
    for (const auto& [key, value] : scope->names)
      if (key == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names)
    if (key == name) return void(old = std::move(value));
  names.emplace_back(name, std::move(value));
}

/// A scope on the stack, which stays where a function was made in it.
struct Interpreter::ScopeHold {
  ScopeHold(Interpreter& i, Scope& parent)
      : interpreter(i), scope(i.scopes_.emplace_back(Scope{&parent})) {}
  ~ScopeHold() {
    if (interpreter.scopes_.size() > interpreter.kept_) interpreter.scopes_.pop_back();
  }
  Interpreter& interpreter;
  Scope& scope;
};

struct Interpreter::Depth {
  explicit Depth(Interpreter& i) : interpreter(i) {
    if (++i.depth_ > kDeepestCalls) {
      --i.depth_;
      throw Failure(
          fmt::format("macros or loops call each other more than {} levels deep", kDeepestCalls));
    }
  }
  ~Depth() { --interpreter.depth_; }
  Interpreter& interpreter;
};

/// One statement or expression inside others: all of them share the stack of the program.
struct Interpreter::Nested {
  explicit Nested(Interpreter& i) : interpreter(i) {
    if (++i.nested_ > kMostNested) {
      --i.nested_;
      throw Failure(
          fmt::format("statements and expressions are nested deeper than {} levels", kMostNested));
    }
  }
  ~Nested() { --interpreter.nested_; }
  Interpreter& interpreter;
};

/// The variable `loop`.
struct Loop final : Object, std::enable_shared_from_this<Loop> {
  Values items;
  size_t index = 0;
  int depth = 0;
  uint16_t held = 0;  // depth of its items
  const Statement* statement = nullptr;
  Scope* scope = nullptr;
  std::optional<Values> last_changed = {};

  const char* type() const override { return "LoopContext"; }
  Value attribute(std::string_view name) override {
    const size_t n = items.size();
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return n - index;
    if (name == "revindex0") return n - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == n;
    if (name == "length") return n;
    if (name == "depth") return depth + 1;
    if (name == "depth0") return depth;
    if (name == "previtem")
      return index > 0 ? items[index - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem")
      return index + 1 < n ? items[index + 1] : Value::undefined("there is no next item");
    const auto self = shared_from_this();
    if (name == "cycle")
      return Function{"cycle",
                      [self](Interpreter&, Arguments& a) {
                        if (a.positional.empty()) throw Failure("no items for cycling given");
                        return a.positional[self->index % a.positional.size()];
                      },
                      {},
                      held};
    if (name == "changed")
      return Function{"changed",
                      [self](Interpreter&, Arguments& a) {
                        const bool same =
                            self->last_changed &&
                            std::ranges::equal(*self->last_changed, a.positional, equal);
                        self->last_changed = a.positional;
                        return Value(!same);
                      },
                      {},
                      held};
    return {};
  }
  Value call(Interpreter& interpreter, Arguments& a) override {
    if (!statement->recursive)
      throw Failure("the loop must have the 'recursive' marker to be called");
    a.expect("loop", 1, 1);
    std::string text;
    std::string* const out = std::exchange(interpreter.out_, &text);
    try {
      interpreter.walk(*statement, iterate(a.get(0, "iterable")), depth + 1, *scope);
    } catch (...) {
      interpreter.out_ = out;
      throw;
    }
    interpreter.out_ = out;
    return text;
  }
};

Interpreter::~Interpreter() {
  for (const auto& object : kept_objects_) object->clear();
}

Interpreter::Interpreter(const std::vector<std::pair<std::string, Value>>& variables,
                         std::string_view date)
    : root_(scopes_.emplace_back()), date_(date) {
  restart_steps();
  for (const auto& [name, value] : variables) root_.set(name, value);
}

void Interpreter::write(std::string_view text) {
  *out_ += text;
  require_fits(out_->size());
}

std::string Interpreter::captured(const Block& block, Scope& scope) {
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  try {
    execute(block, scope);
  } catch (...) {
    out_ = out;
    throw;
  }
  out_ = out;
  return text;
}

Interpreter::Flow Interpreter::execute(const Block& block, Scope& scope) {
  for (const Statement& s : block)
    if (const Flow flow = execute(s, scope); flow != Flow::next) return flow;
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Statement& s, Scope& scope) {
  using S = Statement::Kind;
  const Nested nested(*this);
  spend(1);
  at_ = s.at;
  switch (s.kind) {
    case S::text:
      write(s.name);
      break;
    case S::print:
      write(to_text(evaluate(*s.value, scope)));
      break;
    case S::condition:
      if (truth(evaluate(*s.value, scope))) return execute(*s.body, scope);
      if (s.otherwise) return execute(*s.otherwise, scope);
      break;
    case S::loop:
      return execute_loop(s, scope);
    case S::assign:
      assign(*s.target, evaluate(*s.value, scope), scope);
      break;
    case S::macro:
      scope.set(s.name, function(s, scope, false));
      break;
    case S::breaks:
      return Flow::breaks;
    case S::continues:
      return Flow::continues;
    case S::with: {
      const ScopeHold inner(*this, scope);
      for (size_t i = 0; i < s.targets.size(); ++i)
        assign(*s.targets[i], evaluate(*s.values[i], scope), inner.scope);
      return execute(*s.body, inner.scope);
    }
    case S::capture:
    case S::filter:
    case S::generation: {
      const ScopeHold inner(*this, scope);
      Value text = captured(*s.body, inner.scope);
      if (s.value) text = filtered(*s.value, std::move(text), scope);
      if (s.kind == S::capture) {
        assign(*s.target, std::move(text), scope);
        break;
      }
      const std::string written = to_text(text);
      if (s.kind == S::generation)
        generations_.emplace_back(root_text_.size(), root_text_.size() + written.size());
      write(written);
      break;
    }
    case S::call: {
      Arguments arguments;
      add_arguments(s.value->arguments, scope, arguments);
      arguments.named.emplace_back("caller", function(s, scope, true));
      const Value callee = evaluate(*s.value->parts[0], scope);
      at_ = s.at;
      write(to_text(call(callee, arguments)));
      break;
    }
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute_loop(const Statement& s, Scope& scope) {
  const Value over = evaluate(*s.value, scope);
  at_ = s.at;
  walk(s, iterate(over), 0, scope);
  return Flow::next;
}

void Interpreter::walk(const Statement& s, Values items, int depth, Scope& scope) {
  const Depth deeper(*this);
  if (s.test) {
    Values chosen;
    for (Value& v : items) {
      const ScopeHold inner(*this, scope);
      assign(*s.target, v, inner.scope);
      if (truth(evaluate(*s.test, inner.scope))) chosen.push_back(std::move(v));
    }
    items = std::move(chosen);
  }
  const auto loop = std::make_shared<Loop>();
  loop->held = depth_over(items);
  loop->items = std::move(items);
  loop->depth = depth;
  loop->statement = &s;
  loop->scope = &scope;
  bool completed = false;  // a body that neither broke off nor went on early: Jinja's rule for else
  for (; loop->index < loop->items.size(); ++loop->index) {
    const ScopeHold inner(*this, scope);
    Value variable{std::shared_ptr<Object>(loop)};
    variable.depth = loop->held;
    inner.scope.set("loop", std::move(variable));
    assign(*s.target, loop->items[loop->index], inner.scope);
    const Flow flow = execute(*s.body, inner.scope);
    completed |= flow == Flow::next;
    if (flow == Flow::breaks) break;
  }
  if (!completed && s.otherwise) execute(*s.otherwise, scope);
}

void Interpreter::assign(const Expression& target, Value value, Scope& scope) {
  if (target.kind == Kind::name) {
    scope.set(target.text, std::move(value));
  } else if (target.kind == Kind::attribute) {
    const Value* holder = scope.find(target.parts[0]->text);
    at_ = target.at;
    if (holder == nullptr || holder->object() == nullptr ||
        !holder->object()->assign(target.text, std::move(value)))
      throw Failure("cannot assign attribute on non-namespace object");
  } else {
    at_ = target.at;
    require_defined(value);
    Values parts = iterate(value);
    if (parts.size() != target.parts.size())
      throw Failure(
          fmt::format("expected {} values to unpack, found {}", target.parts.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.parts[i], std::move(parts[i]), scope);
  }
}

Value Interpreter::function(const Statement& s, Scope& scope, bool caller) {
  kept_ = scopes_.size();
  Function f{caller ? "caller" : s.name, [&s, &scope, caller](Interpreter& i, Arguments& a) {
               return i.call_function(s, scope, caller, a);
             }};
  const Signature& signature = *s.signature;
  f.attributes.set("name", f.name);
  f.attributes.set("arguments", Value(Values(signature.names.begin(), signature.names.end()),
                                      Sequence::Form::tuple));
  f.attributes.set("catch_kwargs", signature.uses_kwargs);
  f.attributes.set("catch_varargs", signature.uses_varargs);
  f.attributes.set("caller", signature.uses_caller);
  return f;
}

Value Interpreter::call_function(const Statement& s, Scope& around, bool caller,
                                 Arguments& arguments) {
  const Depth deeper(*this);
  const Signature& signature = *s.signature;
  const ScopeHold inner(*this, around);
  const std::string label = caller ? "caller" : "macro '" + s.name + "'";
  const size_t n = signature.names.size(), first_default = n - signature.defaults.size();
  std::vector<bool> used(arguments.named.size());
  for (size_t i = 0; i < n; ++i) {
    const std::string& name = signature.names[i];
    Value v;
    const auto named =
        std::ranges::find(arguments.named, name, [](const auto& a) { return a.first; });
    if (i < arguments.positional.size()) {
      v = arguments.positional[i];
    } else if (named != arguments.named.end()) {
      v = named->second;
      used[static_cast<size_t>(named - arguments.named.begin())] = true;
    } else if (i >= first_default) {
      v = evaluate(*signature.defaults[i - first_default], inner.scope);
    } else {
      v = Value::undefined(fmt::format("parameter '{}' was not provided", name));
    }
    inner.scope.set(name, std::move(v));
  }
  Values more;
  for (size_t i = n; i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
  if (!more.empty() && !signature.uses_varargs)
    throw Failure(fmt::format("{} takes at most {} argument(s)", label, n));
  inner.scope.set("varargs", Value(std::move(more), Sequence::Form::tuple));
  Dict rest;
  for (size_t i = 0; i < used.size(); ++i) {
    auto& [name, value] = arguments.named[i];
    if (used[i]) continue;
    if (name == "caller" && signature.uses_caller)
      inner.scope.set("caller", value);
    else if (signature.uses_kwargs)
      rest.set(name, value);
    else
      throw Failure(fmt::format("{} takes no keyword argument '{}'", label, name));
  }
  inner.scope.set("kwargs", std::move(rest));
  return captured(*s.body, inner.scope);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  require_defined(callee);
  spend_on(arguments);
  if (const Function* f = callee.function()) return f->call(*this, arguments);
  if (Object* object = callee.object()) return object->call(*this, arguments);
  throw Failure(fmt::format("'{}' object is not callable", type_of(callee)));
}

Value Interpreter::filter(const std::string& name, Arguments& arguments) {
  const Builtin f = find_filter(name);
  if (f == nullptr) throw Failure(unknown_name("filter", name));
  constexpr std::string_view kKeepMarks[] = {"capitalize", "center", "indent",   "lower", "reverse",
                                             "string",     "trim",   "truncate", "upper"};
  const Value input = arguments.positional.at(0);
  spend_on(arguments);
  const bool keeps = std::ranges::find(kKeepMarks, name) != std::end(kKeepMarks);
  return keeps ? marked_as(input, f(*this, arguments)) : f(*this, arguments);
}

bool Interpreter::test(const std::string& name, Arguments& arguments) {
  const Builtin f = find_test(name);
  if (f == nullptr) throw Failure(unknown_name("test", name));
  spend_on(arguments);
  return truth(f(*this, arguments));
}

Value Interpreter::counted(Value value) {
  if (const std::string* text = value.string()) built_ += text->size();
  if (const Sequence* list = value.sequence()) built_ += list->items.size() * sizeof(Value);
  spend_on(value);
  if (built_ > kMostBuilt)
    throw Failure(fmt::format("the template builds more than {} MiB of text", kMostBuilt >> 20));
  return value;
}

Value Interpreter::optional(const ExpressionPtr& e, Scope& scope) {
  return e ? evaluate(*e, scope) : Value(None{});
}

void Interpreter::add_arguments(const CallArguments& from, Scope& scope, Arguments& to) {
  for (const ExpressionPtr& e : from.positional) to.positional.push_back(evaluate(*e, scope));
  for (const auto& [name, e] : from.named) to.named.emplace_back(name, evaluate(*e, scope));
  if (from.rest)
    for (Value& v : iterate(evaluate(*from.rest, scope))) to.positional.push_back(std::move(v));
  if (!from.named_rest) return;
  const Value rest = evaluate(*from.named_rest, scope);
  if (rest.dict() == nullptr) throw Failure("argument after ** must be a mapping");
  for (const auto& [key, v] : rest.dict()->entries) to.named.emplace_back(to_text(key), v);
}

Value Interpreter::filtered(const Expression& e, Value input, Scope& scope) {
  Arguments arguments;
  arguments.positional.push_back(e.parts[0] ? filtered(*e.parts[0], std::move(input), scope)
                                            : std::move(input));
  add_arguments(e.arguments, scope, arguments);
  at_ = e.at;
  return counted(filter(e.text, arguments));
}

Value Interpreter::compare(const Expression& e, Scope& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1], scope);
    at_ = e.at;
    if (!compares(e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate(const Expression& e, Scope& scope) {
  const Nested nested(*this);
  spend(1);
  return compute(e, scope);
}

Value Interpreter::compute(const Expression& e, Scope& scope) {
  const auto part = [&](size_t i) { return evaluate(*e.parts[i], scope); };
  const auto all = [&] {
    Values values;
    for (const ExpressionPtr& p : e.parts) values.push_back(evaluate(*p, scope));
    return values;
  };
  switch (e.kind) {
    case Kind::constant:
      return e.value;
    case Kind::name: {
      if (const Value* found = scope.find(e.text)) return *found;
      const Value global = global_function(e.text);
      return global.is_undefined() ? Value::undefined("'" + e.text + "' is undefined") : global;
    }
    case Kind::list:
      return all();
    case Kind::tuple:
      return {all(), Sequence::Form::tuple};
    case Kind::dict: {
      Dict dict;
      for (size_t i = 0; i < e.parts.size(); i += 2) {
        Value key = part(i);
        dict.set(std::move(key), part(i + 1));
      }
      return dict;
    }
    case Kind::unary: {
      const Value v = part(0);
      if (e.text == "not") return !truth(v);
      at_ = e.at;
      double number = 0;
      if (!v.number(number)) {
        require_defined(v);
        throw Failure(fmt::format("bad operand type for unary {}: '{}'", e.text, type_of(v)));
      }
      if (e.text == "+") return arithmetic("*", v, 1);
      return v.real() != nullptr ? Value(-number) : arithmetic("-", 0, v);
    }
    case Kind::both: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Kind::either: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Kind::choice:
      if (truth(part(1))) return part(0);
      if (e.parts[2]) return part(2);
      return Value::undefined(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined",
          e.at.line));
    case Kind::comparison:
      return compare(e, scope);
    case Kind::concat: {
      std::string text;
      for (const ExpressionPtr& p : e.parts) {
        text += to_text(evaluate(*p, scope));
        at_ = e.at;
        require_fits(text.size());
      }
      return counted(std::move(text));
    }
    case Kind::binary: {
      const Value left = part(0), right = part(1);
      at_ = e.at;
      return counted(arithmetic(e.text, left, right));
    }
    case Kind::attribute: {
      const Value holder = part(0);
      at_ = e.at;
      return attribute(holder, e.text);
    }
    case Kind::item: {
      const Value holder = part(0), key = part(1);
      at_ = e.at;
      return item(holder, key);
    }
    case Kind::slice: {
      const Value holder = part(0), begin = optional(e.parts[1], scope),
                  end = optional(e.parts[2], scope), step = optional(e.parts[3], scope);
      at_ = e.at;
      // Jinja computes a slice of a literal beforehand, and takes a failure for an undefined value.
      const Kind kind = e.parts[0]->kind;
      if ((kind == Kind::constant || kind == Kind::dict) && holder.string() == nullptr)
        return Value::undefined(type_of(holder) + " object has no slices");
      return counted(slice(holder, begin, end, step));
    }
    case Kind::call: {
      const Value callee = part(0);
      Arguments arguments;
      add_arguments(e.arguments, scope, arguments);
      at_ = e.at;
      return counted(call(callee, arguments));
    }
    case Kind::filter: {
      Arguments arguments;
      arguments.positional.push_back(part(0));
      add_arguments(e.arguments, scope, arguments);
      at_ = e.at;
      return counted(filter(e.text, arguments));
    }
    case Kind::test: {
      Arguments arguments;
      arguments.positional.push_back(part(0));
      add_arguments(e.arguments, scope, arguments);
      at_ = e.at;
      return test(e.text, arguments);
    }
  }
  return {};
}

}  // namespace tandem::text::jinja
