#include "tools/chat/chat_loop.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/quote.h"

namespace tandem::tools {
namespace {

constexpr const char* kCommands =
    "/reset        start a new conversation with the same system message\n"
    "/system TEXT  start a new conversation with this system message (no TEXT = none)\n"
    "/save FILE    save the conversation as a line for --prompts\n"
    "/quit         end the chat (also Ctrl-D)\n"
    "/help         show this list\n"
    "A line that ends with \\ continues on the next one. A message that begins with / needs a "
    "space before it.\n"
    "Ctrl-C stops an answer, Ctrl-D ends the chat.";

/// While it lives, SIGINT ends an answer only.
struct SigintScope {
  SigintScope() { cli::sigint_ends_answer(true); }
  ~SigintScope() { cli::sigint_ends_answer(false); }
  SigintScope(const SigintScope&) = delete;
  SigintScope& operator=(const SigintScope&) = delete;
};

}  // namespace

ChatLoop::ChatLoop(cli::Context& cx, decode::Conversation& conversation,
                   const decode::GenerateSpec& how, std::string system, std::string date)
    : cx_(cx),
      conversation_(conversation),
      how_(how),
      system_(std::move(system)),
      date_(std::move(date)),
      lines_(cx.info.line_reader(cx.info.name)) {
  conversation_.restart(system_);
}

void ChatLoop::run() {
  const SigintScope scope;
  cx_.note(fmt::format("chat     context of {} tokens (/help lists commands, Ctrl-D ends the chat)",
                       how_.max_context));
  while (const auto line = read()) {
    if (line->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (*line == "/quit" || *line == "/exit") return;
    try {
      if (line->starts_with('/'))
        obey(*line);
      else
        answer(*line);
    } catch (const Error& e) {
      const ErrorKind kinds[] = {ErrorKind::usage, ErrorKind::recipe, ErrorKind::input};
      if (std::ranges::find(kinds, e.kind()) == std::end(kinds)) throw;
      cx_.terminal.error(e);
    }
  }
}

std::optional<std::string> ChatLoop::read() {
  std::string text;
  for (const char* prompt = "> ";; prompt = "... ") {
    const auto line = lines_->read(prompt);
    if (!line && cli::take_sigint()) {
      cx_.note("Ctrl-D ends the chat");
      return "";
    }
    if (!line) {
      poll([] { return cli::interrupted() != 0; });
      cx_.note("");  // the prompt has a line to itself
      return std::nullopt;
    }
    text += *line;
    if (!text.ends_with('\\')) return text;
    text.back() = '\n';
  }
}

void ChatLoop::obey(const std::string& line) {
  constexpr const char* kBlank = " \t\n";
  const size_t end = std::min(line.find_first_of(kBlank), line.size());
  const size_t begin = std::min(line.find_first_not_of(kBlank, end), line.size());
  const std::string command = line.substr(0, end);
  const std::string rest = line.substr(begin, line.find_last_not_of(kBlank) + 1 - begin);
  if (command == "/help") return cx_.note(kCommands);
  if (command == "/save") return save(rest);
  if (command == "/system") system_ = rest;
  if (command != "/system" && (command != "/reset" || !rest.empty()))
    throw usage_error(io::quote(line), "expected a command")
        .hint(
            "/reset, /system TEXT, /save FILE, /quit and /help are commands; put a blank before a "
            "message that begins with /");
  conversation_.restart(system_);
  cx_.note(fmt::format("new conversation{}", system_.empty() ? "" : " with the system message"));
}

void ChatLoop::save(const std::string& path) {
  if (path.empty()) throw usage_error("/save", "expected the name of a file");
  if (conversation_.messages().empty())
    throw usage_error("/save", "expected messages to save, found none yet");
  if (cx_.file_mode() == cli::FileMode::create && std::filesystem::exists(path))
    throw usage_error(path, "the file exists already")
        .hint("name another one, or start the chat with --overwrite");
  io::OrderedJson messages = io::OrderedJson::array();
  for (const text::ChatMessage& m : conversation_.messages())
    messages.push_back({{"role", m.role}, {"content", m.content}});
  cli::ResultFile file(path, cx_.file_mode(), cx_.out);
  const io::OrderedJson line = {{"messages", std::move(messages)}};
  file.write(line.dump(-1, ' ', false, io::OrderedJson::error_handler_t::replace) + "\n");
  file.commit();
  cx_.note(fmt::format("saved {}", path));
}

void ChatLoop::answer(const std::string& message) {
  const size_t n_before = conversation_.messages().size();
  std::unique_ptr<cli::Progress> progress;
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent& e) {
    progress.reset();
    cx_.out.write(e.text);
  };
  events.on_finish = [&](int, decode::Finish, const std::string& rest) { cx_.out.line(rest); };
  events.on_prefill = [&](int64_t done, int64_t total) {
    if (done == total) return progress.reset();
    if (!progress)
      progress = std::make_unique<cli::Progress>(cx_.terminal, "prefill",
                                                 static_cast<double>(total), "tok");
    progress->update(static_cast<double>(done));
  };
  events.interrupted = cli::is_interrupted;
  const decode::Turn turn = conversation_.ask(message, how_, events);
  progress.reset();
  if (!turn.finish) {
    cx_.out.line("");
    if (!cli::take_sigint()) throw Error(ErrorKind::interrupted, "", "interrupted");
    cx_.note(conversation_.messages().size() > n_before
                 ? "stopped"
                 : "stopped before the answer, the message is dropped");
  }
  report(turn);
}

void ChatLoop::report(const decode::Turn& turn) {
  const decode::GenerateReport& r = turn.report;
  if (turn.has_date)
    cx_.terminal.note_once(
        fmt::format("chat.date: the chat template uses {} as the current date", date_));
  if (turn.finish == decode::Finish::length)
    cx_.note(fmt::format("stopped at {} tokens (to allow more: -n N)", how_.max_tokens));
  if (turn.finish == decode::Finish::context)
    cx_.note(
        fmt::format("stopped at the context limit ({} tokens). /reset starts a new conversation",
                    how_.max_context));
  std::string rate;
  if (r.tokens_decoded > 0 && r.decode_s > 0)
    rate = fmt::format("  {:.1f} tok/s", static_cast<double>(r.tokens_decoded) / r.decode_s);
  cx_.verbose(
      fmt::format("turn     {} tokens reused, {} dropped, {} prefilled in {:.2f} s, {} generated{}",
                  turn.kept, turn.dropped, r.prompt_tokens, r.prefill_s, r.new_tokens, rate));
}

}  // namespace tandem::tools
