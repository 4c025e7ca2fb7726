#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja/interpreter.h"

namespace tandem::text::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kDeepestSyntax = 200;  // of nested expressions and blocks

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "text";
    case TokenKind::print_begin:
      return "{{";
    case TokenKind::print_end:
      return "}}";
    case TokenKind::block_begin:
      return "{%";
    case TokenKind::block_end:
      return "%}";
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::number:
      return to_text(token.number);
    default:
      return token.text;
  }
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Parsed run() {
    Block block = parse_block({});
    if (token().kind != TokenKind::end) unexpected("the end of the template");
    return {std::move(block), std::move(names_)};
  }

 private:
  // --- tokens ---
  const Token& token(size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw SyntaxError(token().at, message);
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    fail(fmt::format("expected {}, found '{}'", wanted, described(token())));
  }
  bool is_op(std::string_view op, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::op && token(ahead).text == op;
  }
  bool is_name(std::string_view name, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::name && token(ahead).text == name;
  }
  bool skip_op(std::string_view op) { return is_op(op) && (++next_, true); }
  bool skip_name(std::string_view name) { return is_name(name) && (++next_, true); }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
  }
  std::string expect_name(std::string_view what) {
    if (token().kind != TokenKind::name) unexpected(what);
    return tokens_[next_++].text;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (token().kind != kind) unexpected(what);
    ++next_;
  }

  /// Counts a level of nesting while it lives.
  struct Level {
    explicit Level(Parser& p) : parser(p) {
      if (++parser.depth_ > kDeepestSyntax)
        parser.fail(fmt::format("nested deeper than {} levels", kDeepestSyntax));
    }
    ~Level() { --parser.depth_; }
    Parser& parser;
  };

  ExpressionPtr node(Kind kind, Position at, std::string text = {}) const {
    return std::make_unique<Expression>(
        Expression{.kind = kind, .at = at, .text = std::move(text)});
  }
  template <class... Parts>
  ExpressionPtr node(Kind kind, Position at, std::string text, Parts... parts) const {
    ExpressionPtr e = node(kind, at, std::move(text));
    (e->parts.push_back(std::move(parts)), ...);
    return e;
  }

  // --- expressions, from the loosest binding to the tightest ---
  ExpressionPtr parse_expression(bool with_choice = true) {
    const Level level(*this);
    ExpressionPtr left = parse_either();
    while (with_choice && is_name("if")) {
      const Position at = token().at;
      ++next_;
      ExpressionPtr condition = parse_either();
      ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      left =
          node(Kind::choice, at, {}, std::move(left), std::move(condition), std::move(otherwise));
    }
    return left;
  }

  ExpressionPtr parse_either() {
    ExpressionPtr left = parse_both();
    for (Position at = token().at; skip_name("or"); at = token().at)
      left = node(Kind::either, at, {}, std::move(left), parse_both());
    return left;
  }

  ExpressionPtr parse_both() {
    ExpressionPtr left = parse_not();
    for (Position at = token().at; skip_name("and"); at = token().at)
      left = node(Kind::both, at, {}, std::move(left), parse_not());
    return left;
  }

  ExpressionPtr parse_not() {
    const Level level(*this);
    const Position at = token().at;
    return skip_name("not") ? node(Kind::unary, at, "not", parse_not()) : parse_comparison();
  }

  ExpressionPtr parse_comparison() {
    constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
    const Position at = token().at;
    ExpressionPtr left = parse_sum();
    ExpressionPtr chain;
    while (true) {
      std::string op;
      if (token().kind == TokenKind::op &&
          std::ranges::find(kOperators, token().text) != kOperators.end())
        op = tokens_[next_++].text;
      else if (skip_name("in"))
        op = "in";
      else if (is_name("not") && is_name("in", 1))
        next_ += 2, op = "not in";
      else
        return chain ? std::move(chain) : std::move(left);
      if (!chain) chain = node(Kind::comparison, at, {}, std::move(left));
      chain->operators.push_back(std::move(op));
      chain->parts.push_back(parse_sum());
    }
  }

  /// Left-associative operators of one rank.
  template <class Next>
  ExpressionPtr parse_binary(std::initializer_list<std::string_view> ops, const Next& next) {
    ExpressionPtr left = next();
    while (token().kind == TokenKind::op && std::ranges::find(ops, token().text) != ops.end()) {
      const Position at = token().at;
      std::string op = tokens_[next_++].text;
      left = node(Kind::binary, at, std::move(op), std::move(left), next());
    }
    return left;
  }
  ExpressionPtr parse_sum() {
    return parse_binary({"+", "-"}, [&] { return parse_concat(); });
  }
  ExpressionPtr parse_concat() {
    const Position at = token().at;
    ExpressionPtr left = parse_product();
    if (!is_op("~")) return left;
    ExpressionPtr all = node(Kind::concat, at, {}, std::move(left));
    while (skip_op("~")) all->parts.push_back(parse_product());
    return all;
  }
  ExpressionPtr parse_product() {
    return parse_binary({"*", "/", "//", "%"},
                        [&] { return parse_binary({"**"}, [&] { return parse_unary(true); }); });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const Level level(*this);
    const Position at = token().at;
    ExpressionPtr e;
    if (is_op("-") || is_op("+")) {
      std::string op = tokens_[next_++].text;
      e = node(Kind::unary, at, std::move(op), parse_unary(false));
    } else {
      e = parse_primary(false);
    }
    e = parse_postfix(std::move(e));
    return with_filters ? parse_filters(std::move(e)) : std::move(e);
  }

  ExpressionPtr constant(Position at, Value value) const {
    ExpressionPtr e = node(Kind::constant, at);
    e->value = std::move(value);
    return e;
  }

  /// as_target   the name may be namespace.attribute
  ExpressionPtr parse_primary(bool as_target) {
    const Token& t = token();
    const Position at = t.at;
    if (t.kind == TokenKind::name) {
      ++next_;
      const std::string& name = t.text;
      if (name == "true" || name == "True") return constant(at, true);
      if (name == "false" || name == "False") return constant(at, false);
      if (name == "none" || name == "None") return constant(at, None{});
      if (as_target && skip_op(".")) {
        ExpressionPtr target = node(Kind::attribute, at, {}, node(Kind::name, at, name));
        target->text = expect_name("an attribute");
        return target;
      }
      note_name(name);
      return node(Kind::name, at, name);
    }
    if (t.kind == TokenKind::string) {
      std::string text;
      while (token().kind == TokenKind::string) text += tokens_[next_++].text;
      return constant(at, std::move(text));
    }
    if (t.kind == TokenKind::number) return constant(at, tokens_[next_++].number);
    if (skip_op("(")) {
      ExpressionPtr e = parse_tuple(true, {}, true);
      expect_op(")");
      return e;
    }
    if (skip_op("[")) {
      ExpressionPtr list = node(Kind::list, at);
      while (!is_op("]")) {
        if (!list->parts.empty()) expect_op(",");
        if (is_op("]")) break;
        list->parts.push_back(parse_expression());
      }
      ++next_;
      return list;
    }
    if (skip_op("{")) {
      ExpressionPtr dict = node(Kind::dict, at);
      while (!is_op("}")) {
        if (!dict->parts.empty()) expect_op(",");
        if (is_op("}")) break;
        dict->parts.push_back(parse_expression());
        expect_op(":");
        dict->parts.push_back(parse_expression());
      }
      ++next_;
      return dict;
    }
    unexpected("an expression");
  }

  bool tuple_ends(std::initializer_list<std::string_view> words) const {
    const TokenKind kind = token().kind;
    return kind == TokenKind::print_end || kind == TokenKind::block_end || is_op(")") ||
           std::ranges::any_of(words, [&](std::string_view w) { return is_name(w); });
  }

  /// One expression, or several with commas between them.
  ExpressionPtr parse_tuple(bool with_choice = true,
                            std::initializer_list<std::string_view> ends = {},
                            bool in_parentheses = false, bool as_target = false) {
    const Position at = token().at;
    ExpressionPtr tuple = node(Kind::tuple, at);
    bool commas = false;
    while (!tuple_ends(ends)) {
      tuple->parts.push_back(as_target ? parse_primary(true) : parse_expression(with_choice));
      if (!skip_op(",")) break;
      commas = true;
    }
    if (commas || (in_parentheses && tuple->parts.empty())) return tuple;
    if (tuple->parts.empty()) unexpected("an expression");
    return std::move(tuple->parts[0]);
  }

  ExpressionPtr parse_target(std::initializer_list<std::string_view> ends = {}) {
    ExpressionPtr target = parse_tuple(true, ends, false, true);
    check_target(*target);
    return target;
  }
  void check_target(const Expression& target) const {
    if (target.kind == Kind::tuple)
      for (const ExpressionPtr& part : target.parts) check_target(*part);
    else if (target.kind != Kind::name && target.kind != Kind::attribute)
      throw SyntaxError(target.at, "expected a name to assign to");
  }

  ExpressionPtr parse_postfix(ExpressionPtr e) {
    while (true) {
      const Position at = token().at;
      if (skip_op(".")) {
        if (token().kind == TokenKind::number)
          e = node(Kind::item, at, {}, std::move(e), constant(at, tokens_[next_++].number));
        else
          e = node(Kind::attribute, at, expect_name("the name of an attribute"), std::move(e));
      } else if (skip_op("[")) {
        e = parse_subscript(std::move(e), at);
      } else if (is_op("(")) {
        e = parse_call(std::move(e));
      } else {
        return e;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr e, Position at) {
    ExpressionPtr bounds[3];
    size_t n = 0;
    bool slices = false;
    for (; n < 3 && !is_op("]"); ++n) {
      if (!is_op(":")) bounds[n] = parse_expression();
      if (!is_op(":")) break;
      slices = true;
      ++next_;
    }
    if (!slices && !bounds[0]) unexpected("an expression");
    expect_op("]");
    if (!slices) return node(Kind::item, at, {}, std::move(e), std::move(bounds[0]));
    return node(Kind::slice, at, {}, std::move(e), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  }

  CallArguments parse_arguments() {
    CallArguments a;
    expect_op("(");
    while (!is_op(")")) {
      if (a.rest || a.named_rest || !a.positional.empty() || !a.named.empty()) {
        expect_op(",");
        if (is_op(")")) break;
      }
      if (skip_op("*")) {
        a.rest = parse_expression();
      } else if (skip_op("**")) {
        a.named_rest = parse_expression();
      } else if (token().kind == TokenKind::name && is_op("=", 1)) {
        std::string name = tokens_[next_].text;
        next_ += 2;
        a.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!a.named.empty() || a.rest) fail("expected no positional argument after a named one");
        a.positional.push_back(parse_expression());
      }
    }
    ++next_;
    return a;
  }

  ExpressionPtr parse_call(ExpressionPtr callee) {
    const Position at = token().at;
    ExpressionPtr call = node(Kind::call, at, {}, std::move(callee));
    call->arguments = parse_arguments();
    return call;
  }

  ExpressionPtr parse_filters(ExpressionPtr e) {
    while (true) {
      if (is_op("|"))
        e = parse_filter(std::move(e));
      else if (is_name("is"))
        e = parse_test(std::move(e));
      else if (is_op("("))
        e = parse_call(std::move(e));
      else
        return e;
    }
  }

  std::string dotted_name(std::string_view what) {
    std::string name = expect_name(what);
    while (skip_op(".")) name += "." + expect_name(what);
    return name;
  }

  /// An unknown filter or test in a branch that may never be taken is refused when it is.
  void check_known(bool known, const char* what, const std::string& name, Position at) const {
    if (!known && branches_ == 0) throw SyntaxError(at, unknown_name(what, name));
  }

  ExpressionPtr parse_filter(ExpressionPtr e) {
    expect_op("|");
    const Position at = token().at;
    ExpressionPtr filter =
        node(Kind::filter, at, dotted_name("the name of a filter"), std::move(e));
    check_known(find_filter(filter->text) != nullptr, "filter", filter->text, at);
    if (is_op("(")) filter->arguments = parse_arguments();
    return filter;
  }

  ExpressionPtr parse_test(ExpressionPtr e) {
    ++next_;
    const Position at = token().at;
    const bool negated = skip_name("not");
    ExpressionPtr test = node(Kind::test, at, dotted_name("the name of a test"), std::move(e));
    check_known(find_test(test->text) != nullptr, "test", test->text, at);
    const TokenKind kind = token().kind;
    if (is_op("(")) {
      test->arguments = parse_arguments();
    } else if ((kind == TokenKind::name || kind == TokenKind::string || kind == TokenKind::number ||
                is_op("[") || is_op("{")) &&
               !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) fail("tests cannot be chained with 'is'");
      test->arguments.positional.push_back(parse_postfix(parse_primary(false)));
    }
    return negated ? node(Kind::unary, at, "not", std::move(test)) : std::move(test);
  }

  // --- statements ---
  /// Up to a tag that begins with one of `ends`, whose name is the next token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Block block;
    while (token().kind != TokenKind::end) {
      const Position at = token().at;
      if (token().kind == TokenKind::data) {
        block.push_back({.kind = Statement::Kind::text, .at = at, .name = tokens_[next_++].text});
      } else if (token().kind == TokenKind::print_begin) {
        ++next_;
        block.push_back({.kind = Statement::Kind::print, .at = at, .value = parse_tuple()});
        expect(TokenKind::print_end, "'}}'");
      } else {
        ++next_;  // {%
        if (std::ranges::any_of(ends, [&](std::string_view end) { return is_name(end); }))
          return block;
        block.push_back(parse_statement());
        expect(TokenKind::block_end, "'%}'");
      }
    }
    if (ends.size() > 0) unexpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
    return block;
  }

  /// The body of a tag, and what ends it; the closing tag's name is read.
  std::shared_ptr<Block> parse_body(std::initializer_list<std::string_view> ends) {
    expect(TokenKind::block_end, "'%}'");
    auto body = std::make_shared<Block>(parse_block(ends));
    return body;
  }
  std::shared_ptr<Block> parse_whole_body(std::string_view end) {
    auto body = parse_body({end});
    ++next_;
    return body;
  }

  Statement parse_statement() {
    const Position at = token().at;
    const std::string name = expect_name("the name of a tag");
    const auto made = [&](Statement::Kind kind) { return Statement{.kind = kind, .at = at}; };
    if (name == "if") return parse_condition(at);
    if (name == "for") return parse_loop(at);
    if (name == "set") return parse_set(at);
    if (name == "macro") return parse_macro(at);
    if (name == "call") return parse_call_block(at);
    if (name == "with") return parse_with(at);
    if (name == "generation") {
      Statement s = made(Statement::Kind::generation);
      s.body = parse_whole_body("endgeneration");
      return s;
    }
    if (name == "filter") {
      Statement s = made(Statement::Kind::filter);
      s.value = parse_block_filters();
      s.body = parse_whole_body("endfilter");
      return s;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw SyntaxError(at, fmt::format("'{}' outside a loop", name));
      return made(name == "break" ? Statement::Kind::breaks : Statement::Kind::continues);
    }
    throw SyntaxError(at, fmt::format("the tag '{}' is not supported here", name));
  }

  /// Filters of a block, whose first has no input yet.
  ExpressionPtr parse_block_filters() {
    tokens_.insert(tokens_.begin() + static_cast<std::ptrdiff_t>(next_),
                   Token{TokenKind::op, "|", {}, token().at});
    ExpressionPtr filters;
    while (is_op("|")) filters = parse_filter(std::move(filters));
    return filters;
  }

  Statement parse_condition(Position at) {
    ++branches_;
    Statement s{.kind = Statement::Kind::condition, .at = at, .value = parse_tuple(false)};
    s.body = parse_body({"elif", "else", "endif"});
    const Position next = token().at;
    if (skip_name("elif")) {
      s.otherwise = std::make_shared<Block>();
      const Level level(*this);
      s.otherwise->push_back(parse_condition(next));
    } else if (skip_name("else")) {
      s.otherwise = parse_whole_body("endif");
    } else {
      ++next_;
    }
    --branches_;
    return s;
  }

  Statement parse_loop(Position at) {
    Statement s{.kind = Statement::Kind::loop, .at = at, .target = parse_target({"in"})};
    if (s.target->text == "loop")
      throw SyntaxError(at, "'loop' is not supported as a loop variable");
    if (!skip_name("in")) unexpected("'in'");
    s.value = parse_tuple(false, {"recursive"});
    if (skip_name("if")) s.test = parse_expression();
    s.recursive = skip_name("recursive");
    ++loops_;
    s.body = parse_body({"else", "endfor"});
    --loops_;
    if (skip_name("else"))
      s.otherwise = parse_whole_body("endfor");
    else
      ++next_;
    return s;
  }

  Statement parse_set(Position at) {
    Statement s{.kind = Statement::Kind::assign, .at = at, .target = parse_target()};
    if (skip_op("=")) {
      s.value = parse_tuple();
      return s;
    }
    s.kind = Statement::Kind::capture;
    while (is_op("|")) s.value = parse_filter(std::move(s.value));
    s.body = parse_whole_body("endset");
    return s;
  }

  void parse_signature(Signature& signature) {
    expect_op("(");
    while (!is_op(")")) {
      if (!signature.names.empty()) expect_op(",");
      if (is_op(")")) break;
      signature.names.push_back(expect_name("the name of a parameter"));
      if (signature.names.back() == "caller") fail("'caller' is not supported as a parameter");
      if (skip_op("="))
        signature.defaults.push_back(parse_expression());
      else if (!signature.defaults.empty())
        fail("expected a default for a parameter after one with a default");
    }
    ++next_;
  }

  /// A function's body; break and continue do not reach out of it.
  std::shared_ptr<Block> parse_function_body(Statement& s, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Signature* const outer = std::exchange(signature_, s.signature.get());
    auto body = parse_whole_body(end);
    signature_ = outer;
    loops_ = loops;
    return body;
  }

  Statement parse_macro(Position at) {
    Statement s{
        .kind = Statement::Kind::macro, .at = at, .name = expect_name("the name of a macro")};
    s.signature = std::make_shared<Signature>();
    parse_signature(*s.signature);
    s.body = parse_function_body(s, "endmacro");
    return s;
  }

  Statement parse_call_block(Position at) {
    Statement s{.kind = Statement::Kind::call, .at = at};
    s.signature = std::make_shared<Signature>();
    if (is_op("(")) parse_signature(*s.signature);
    s.value = parse_expression();
    if (s.value->kind != Kind::call) throw SyntaxError(at, "expected a call of a macro");
    s.body = parse_function_body(s, "endcall");
    return s;
  }

  Statement parse_with(Position at) {
    Statement s{.kind = Statement::Kind::with, .at = at};
    while (token().kind != TokenKind::block_end) {
      if (!s.targets.empty()) expect_op(",");
      s.targets.push_back(parse_primary(false));
      check_target(*s.targets.back());
      expect_op("=");
      s.values.push_back(parse_expression());
    }
    s.body = parse_whole_body("endwith");
    return s;
  }

  /// A macro takes further arguments only if it reads them.
  void note_name(const std::string& name) {
    names_.insert(name);
    if (signature_ == nullptr) return;
    signature_->uses_varargs |= name == "varargs";
    signature_->uses_kwargs |= name == "kwargs";
    signature_->uses_caller |= name == "caller";
  }

  std::vector<Token> tokens_;
  std::set<std::string, std::less<>> names_;
  size_t next_ = 0;
  int depth_ = 0, loops_ = 0, branches_ = 0;
  Signature* signature_ = nullptr;  // of the macro that is being read
};

}  // namespace

Parsed parse(std::string_view source) { return Parser(source).run(); }

}  // namespace tandem::text::jinja
