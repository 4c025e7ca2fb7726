#include "cli/main_wrapper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "cli/completion.h"
#include "cli/help.h"
#include "cli/listing.h"
#include "cli/threads.h"
#include "io/cache_dir.h"
#include "io/file.h"
#include "tensor/gpu_isa.h"

namespace tandem::cli {
namespace {

/// Help is served wherever its flag stands, even among mistakes.
bool asks_for_help(const std::vector<std::string>& arguments) {
  const auto end = std::ranges::find(arguments, "--");
  return std::any_of(arguments.begin(), end,
                     [](const std::string& word) { return word == "-h" || word == "--help"; });
}

/// The section of `--help-recipe[=SECTION]` or `--help=SECTION`, if asked for.
std::optional<std::string> recipe_help_section(const std::vector<std::string>& arguments) {
  const auto end = std::ranges::find(arguments, "--");
  for (auto word = arguments.begin(); word != end; ++word) {
    if (*word == "--help-recipe") return std::string{};
    for (const std::string_view flag : {"--help-recipe=", "--help="})
      if (word->starts_with(flag)) return word->substr(flag.size());
  }
  return std::nullopt;
}

/// errors   kind usage: no such section, or a form that help has not
std::string recipe_help(const ToolInfo& info, const std::vector<std::string>& arguments,
                        const std::string& section) {
  std::string form;
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] == "--json") form = "json";
    if (arguments[i] == "--format" && i + 1 < arguments.size()) form = arguments[++i];
    if (arguments[i].starts_with("--format=")) form = arguments[i].substr(9);
  }
  if (form == "json") return recipe_help_json(info, section);
  if (!form.empty() && form != "text")
    throw usage_error("--format", "expected text or json with --help-recipe, found '{}'", form);
  return ::isatty(STDOUT_FILENO) == 1
             ? recipe_help_text(info, section, window_columns(STDOUT_FILENO))
             : recipe_help_lines(info, section);
}

/// Returns the output of --list-models, --list-recipes, --completion, --man or --upgrade-recipe, if
/// one is given.
std::optional<std::string> described_tool(const ToolInfo& info, const Options& options) {
  if (options.is_set("list-models")) return model_list();
  if (options.is_set("list-recipes")) return recipe_list(info);
  if (options.is_set("completion"))
    return completion_script(info, options.values.at("completion").back());
  if (options.is_set("man")) return man_page(info);
  if (options.is_set("upgrade-recipe"))
    return upgraded_recipe(info, options.values.at("upgrade-recipe").back());
  return std::nullopt;
}

/// Of several ranks, rank 0 reports why any of them ends.
void leave(const Context& context, const Error& error) {
  if (context.group() && context.group()->leave(error) && context.place().rank > 0)
    throw ranks::Ended{exit_status(error.kind())};
}

int run(const ToolInfo& info, const std::vector<std::string>& arguments, Terminal& terminal,
        Output& out, const std::function<int(Context&)>& body) {
  if (asks_for_help(arguments)) {
    out.write(help_text(info, window_columns(STDOUT_FILENO)));
    return 0;
  }
  if (const auto section = recipe_help_section(arguments); section && info.schema) {
    out.write(recipe_help(info, arguments, *section));
    return 0;
  }
  if (arguments.empty()) {
    terminal.note(short_help_text(info, window_columns(STDERR_FILENO)));
    return exit_status(ErrorKind::usage);
  }
  Options options = parse_options(info, arguments);
  lower_isa_by_environment();
  cuda::force_gpu_isa_by_environment();
  for (const std::string& warning : thread_warnings()) terminal.warn(warning);
  if (options.is_set("version")) {
    out.write(version_text(info, options.verbosity > 0));
    return 0;
  }
  if (const auto text = described_tool(info, options)) {
    out.write(*text);
    return 0;
  }
  Context context(info, std::move(options), terminal, out);
  try {
    const int status = body(context);
    context.note_renamed();
    context.end_plans();
    out.flush();  // it may fail, and that ends all ranks
    if (context.group()) context.group()->finish();
    // Benchmarks and evaluations end with the results that they have.
    if (interrupted() != 0 && context.place().rank == 0)
      terminal.error(Error(ErrorKind::interrupted, "", "interrupted"));
    return status;
  } catch (const Error& e) {
    leave(context, e);
    throw;
  } catch (const std::exception& e) {
    leave(context, Error(ErrorKind::internal, "", e.what()));
    throw;
  }
}

/// The Error that an exception amounts to. Called inside a catch block.
int report_current_exception(const ToolInfo& info, Terminal& terminal) {
  try {
    throw;
  } catch (const recipe::InvalidRecipe& e) {
    for (const Error& problem : e.problems()) terminal.error(problem);
    return exit_status(e.kind());
  } catch (const Error& e) {
    terminal.error(e);
    return exit_status(e.kind());
  } catch (const std::bad_alloc&) {
    terminal.error(Error(ErrorKind::memory, "", "not enough memory")
                       .hint("--dry-run shows the memory needed; lower run.context or run.batch"));
    return exit_status(ErrorKind::memory);
  } catch (const std::filesystem::filesystem_error& e) {
    terminal.error(Error(ErrorKind::input, e.path1().string(), e.code().message()));
    return exit_status(ErrorKind::input);
  } catch (const std::exception& e) {
    terminal.error(Error(ErrorKind::internal, "internal", e.what())
                       .hint(fmt::format("this is a bug: please report it with the output of {} "
                                         "--version -v",
                                         info.name)));
    return exit_status(ErrorKind::internal);
  }
}

/// A stream that the caller has closed leaves its number to the first file that is opened, which
/// would then get the text meant for the stream. What stands for it can be used only the wrong way,
/// so that reading standard input or writing a result to standard output still fails.
void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Takes the lowest free number: those below are open by now.
    ::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

int main_wrapper(const ToolInfo& info, int argc, char** argv,
                 const std::function<int(Context&)>& body) {
  open_standard_streams();
  install_signal_handlers();
  io::interrupt_reading_by([] { return interrupted() != 0; });
  Terminal terminal(info.name);
  const Stopwatch clock;
  int status = 0;
  try {
    Output out(terminal);
    try {
      status = run(info, {argv + std::min(argc, 1), argv + argc}, terminal, out, body);
    } catch (const EarlyExit& early) {
      status = early.status;
    } catch (const ranks::Ended& ended) {  // rank 0 says why
      status = ended.status;
    }
    out.flush();
  } catch (const BrokenPipe&) {
    die_of_broken_pipe();
  } catch (const std::exception&) {
    status = report_current_exception(info, terminal);
  }
  terminal.clear_progress();
  constexpr double kLongRunSeconds = 10;  // by then early warnings have scrolled away
  if (clock.seconds() > kLongRunSeconds) terminal.repeat_warnings();
  if (const std::string why = io::why_not_kept(); !why.empty())
    terminal.warn("measurements of this machine are not saved: " + why);
  // However the body handled an interruption, callers learn of it by the conventional status.
  agree_by({});
  return interrupted() != 0 ? 128 + interrupted() : status;
}

}  // namespace tandem::cli
