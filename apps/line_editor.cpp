#include "line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <string_view>
#include <utility>

#include "cli/signals.h"
#include "io/quote.h"

namespace {

using namespace tandem;

// A terminal sends pasted text between these once it is asked to.
constexpr std::wstring_view kPaste = L"\033[200~", kPasteEnd = L"\033[201~";
constexpr const char* kMarkPastes = "\033[?2004h";
constexpr const char* kLeavePastes = "\033[?2004l";
// The line shows a pasted line end as this sign.
constexpr wchar_t kLineEnd = L'\u21b5';
constexpr std::string_view kLineEndText = "\u21b5";
constexpr wchar_t kQuote = L'\x16';  // Ctrl-V: the next character is text

class LineEditor final : public cli::LineReader {
 public:
  explicit LineEditor(const std::string& tool)
      : out_(::fdopen(::dup(STDERR_FILENO), "w")), history_(::history_init()) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = ::el_init(tool.c_str(), stdin, out_, out_);
    ::history(history_, &event_, H_SETSIZE, kHistory);
    ::el_set(edit_, EL_CLIENTDATA, this);
    ::el_set(edit_, EL_PROMPT, prompt_of);
    ::el_set(edit_, EL_EDITOR, "emacs");
    ::el_set(edit_, EL_HIST, ::history, history_);
    ::el_set(edit_, EL_GETCFN, next_of);
    ::el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    ::el_set(edit_, EL_BIND, "\\e[3~", "ed-delete-next-char", nullptr);
    ::el_source(edit_, nullptr);
  }
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor() override {
    ::el_end(edit_);
    ::history_end(history_);
    std::fclose(out_);
  }

  std::optional<std::string> read(const std::string& prompt) override {
    prompt_ = prompt;
    typed_.clear();
    ::el_resize(edit_);
    marks_pastes_ = false;
    int n = 0;
    const char* text = ::el_gets(edit_, &n);
    if (cli::interrupted() == SIGINT) std::fputs("\n", out_);
    std::fputs(kLeavePastes, out_);
    std::fflush(out_);
    if (text == nullptr || n <= 0 || cli::interrupted() != 0) return std::nullopt;
    std::string line(text);
    if (line.ends_with('\n')) line.pop_back();
    if (!line.empty()) ::history(history_, &event_, H_ENTER, line.c_str());
    return io::replace_all(line, kLineEndText, "\n");
  }

 private:
  static constexpr int kHistory = 1000;  // lines
  static constexpr int kKeyMs = 50;      // bytes of one key follow each other sooner

  static LineEditor& self(EditLine* edit) {
    void* editor = nullptr;
    ::el_get(edit, EL_CLIENTDATA, &editor);
    return *static_cast<LineEditor*>(editor);
  }
  static char* prompt_of(EditLine* edit) { return self(edit).prompt_.data(); }
  static int next_of(EditLine* edit, wchar_t* c) { return self(edit).next(*c); }

  /// 1 with a character, 0 at the end of the input or after timeout_ms, -1 once interrupted.
  int next(wchar_t& c) {
    // libedit has set the terminal's mode by now, before its first read.
    if (!std::exchange(marks_pastes_, true)) {
      std::fputs(kMarkPastes, out_);
      std::fflush(out_);
    }
    if (typed_.empty())
      if (const int n = type(); n <= 0) return n;
    c = typed_.front();
    typed_.erase(0, 1);
    return 1;
  }

  /// Appends to typed_ what one key or one paste gives; returns as next.
  int type() {
    int n = read_character(-1);
    while (n > 0 && kPaste.starts_with(typed_) && typed_ != kPaste)
      if (read_character(kKeyMs) <= 0) break;
    if (n <= 0 || typed_ != kPaste) return n;
    while (n > 0 && !typed_.ends_with(kPasteEnd)) n = read_character(-1);
    if (n <= 0) return n;
    const std::wstring text =
        typed_.substr(kPaste.size(), typed_.size() - kPaste.size() - kPasteEnd.size());
    typed_.clear();
    for (const wchar_t c : text) {
      if (c == L'\r' || c == L'\n')
        typed_ += kLineEnd;
      else if (c == L'\t')
        typed_ += {kQuote, c};
      else if (c >= L' ')
        typed_ += c;
    }
    return typed_.empty() ? type() : 1;
  }

  int read_character(int timeout_ms) {
    std::mbstate_t state{};
    for (;;) {
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (cli::interrupted() != 0) return -1;
      const int ready = ::poll(&input, 1, timeout_ms);
      if (ready < 0 && errno == EINTR) continue;
      char byte = 0;
      if (ready <= 0 || ::read(STDIN_FILENO, &byte, 1) <= 0) return 0;
      wchar_t c = 0;
      const size_t done = std::mbrtowc(&c, &byte, 1, &state);
      if (done == static_cast<size_t>(-2)) continue;  // more bytes belong to it
      typed_ += done == static_cast<size_t>(-1) ? L'\ufffd' : c;
      return 1;
    }
  }

  FILE* out_;
  History* history_;
  EditLine* edit_ = nullptr;
  HistEvent event_{};
  std::string prompt_;
  std::wstring typed_;  // characters that libedit has not taken yet
  bool marks_pastes_ = false;
};

}  // namespace

std::unique_ptr<cli::LineReader> line_editor(const std::string& tool) {
  return std::make_unique<LineEditor>(tool);
}
