#include "cli/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>

#include "cli/completion.h"
#include "io/quote.h"
#include "recipe/problems.h"

namespace tandem::cli {
namespace {

/// CLI11 treats `--flag=` as a flag without a value and eats the next word: split it beforehand.
std::vector<std::string> with_empty_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> list;
  for (const std::string& argument : arguments) {
    if (argument.size() > 3 && argument.starts_with("--") && argument.ends_with('=')) {
      list.push_back(argument.substr(0, argument.size() - 1));
      list.emplace_back();
    } else {
      list.push_back(argument);
    }
  }
  return list;
}

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

/// The long names of a flag, without dashes.
std::vector<std::string> long_names(const Flag& flag) {
  std::vector<std::string> names;
  for (size_t at = flag.names.find("--"); at != std::string::npos;
       at = flag.names.find("--", at + 2))
    names.push_back(flag.names.substr(at + 2, flag.names.find(',', at) - at - 2));
  return names;
}

/// Returns the hint for an unknown flag: the key of that name, or the nearest flag or key.
/// name    without dashes
/// value   as written, or empty
std::string meant_by(const std::string& name, const std::string& value, const ToolInfo& info) {
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  const std::vector<Flag> flags = all_flags(info);
  const auto setting = [&](const std::string& key) {
    const auto flag = std::ranges::find(flags, key, &Flag::key);
    return flag != flags.end() ? "--" + flag->long_name()
                               : fmt::format("-s {}={}", key, value.empty() ? "VALUE" : value);
  };
  const auto settings = [&](const std::vector<std::string>& keys) {
    constexpr size_t kMostNamed = 4;
    std::string text;
    for (size_t i = 0; i < std::min(keys.size(), kMostNamed); ++i)
      text += (i > 0 ? " or " : "") + setting(keys[i]);
    return text;
  };
  std::vector<std::string> names;
  for (const Flag& flag : flags)
    for (std::string& long_name : long_names(flag)) names.push_back(std::move(long_name));
  // Other programs call these flags by the first name.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kElsewhere = {
      {{"max-new-tokens", "max-tokens"},
       {"n-predict", "max-tokens"},
       {"learning-rate", "lr"},
       {"interactive", "chat"},
       {"conversation", "chat"}}};
  for (const auto& [elsewhere, here] : kElsewhere)
    if (name == elsewhere && std::ranges::find(names, here) != names.end())
      return fmt::format("it is --{} here", here);
  const std::vector<std::string> named = recipe::keys_like(schema, name);
  if (named.size() == 1) return fmt::format("it is the key {}: {}", named[0], settings(named));
  if (!named.empty())
    return fmt::format("it may be the key {}: {}", fmt::join(named, " or "), settings(named));
  if (const auto near = recipe::nearest(name, {names.begin(), names.end()}); !near.empty())
    return fmt::format("did you mean '--{}'?", near);
  if (const auto near = recipe::keys_like(schema, name, true); !near.empty())
    return fmt::format("did you mean {}?", settings(near));
  return "--help lists all flags";
}

/// errors   kind usage: an unknown flag in what CLI11 has left
void refuse_unknown_flags(const std::vector<std::string>& rest, const ToolInfo& info) {
  const auto unknown = std::ranges::find_if(rest, is_flag);
  if (unknown == rest.end()) return;
  const size_t equals = unknown->find('=');
  const std::string word = unknown->substr(0, equals);
  std::string value;
  if (equals != std::string::npos)
    value = unknown->substr(equals + 1);
  else if (unknown + 1 != rest.end() && !is_flag(*(unknown + 1)))
    value = *(unknown + 1);
  throw usage_error(word, "unknown flag")
      .hint(word.starts_with("--") ? meant_by(word.substr(2), value, info)
                                   : "--help lists all flags");
}

/// Gives words without a flag to the one that they are for.
/// errors   kind usage: no flag takes them, or there are several
void take_positional(const std::vector<std::string>& words, const ToolInfo& info,
                     Options& options) {
  if (words.empty()) return;
  if (info.positional.empty() || words.size() > 1)
    throw usage_error("'" + words[info.positional.empty() ? 0 : 1] + "'", "unexpected argument")
        .hint("a value follows its flag; put text with spaces in quotes");
  if (words.front() == "-")
    throw usage_error("'-'", "unexpected argument").hint("-f - reads standard input");
  options.values[info.positional].push_back(words.front());
}

/// Values of a tool's own flags that set no key are not laid over each other: the last would win
/// without a word.
void refuse_repeats(const ToolInfo& info, const Options& options) {
  for (const Flag& flag : info.flags) {
    const auto given = options.values.find(flag.long_name());
    if (given == options.values.end() || given->second.size() < 2 || flag.value.empty() ||
        !flag.key.empty())
      continue;
    throw usage_error("--" + flag.long_name(), "given more than once: {} and {}",
                      io::quote(given->second[0]), io::quote(given->second[1]))
        .hint(flag.long_name() == "prompt" ? "give only one, or several prompts with --prompts FILE"
                                           : "give it once");
  }
}

/// The value of a flag that takes one of some words, by default the first.
std::string one_of(const Options& options, const std::string& name,
                   const std::vector<std::string>& accepted) {
  const auto found = options.values.find(name);
  if (found == options.values.end()) return accepted.front();
  const std::string& value = found->second.back();
  if (std::ranges::find(accepted, value) == accepted.end()) {
    const std::string near = recipe::did_you_mean(value, {accepted.begin(), accepted.end()});
    throw usage_error("--" + name, "expected {}{}, found '{}'{}",
                      accepted.size() > 1 ? "one of " : "", fmt::join(accepted, ", "), value,
                      near.empty() ? "" : "; " + near);
  }
  return value;
}

/// errors   kind usage: not I/N, I beyond N
void read_shard(const std::string& text, Options& options) {
  const auto number = [](std::string_view digits) -> size_t {
    constexpr size_t kMostDigits = 6;
    const bool is_count = !digits.empty() && digits.size() <= kMostDigits &&
                          digits.find_first_not_of("0123456789") == std::string_view::npos;
    return is_count ? std::stoul(std::string(digits)) : 0;
  };
  const size_t slash = std::min(text.find('/'), text.size());
  const size_t i = number(std::string_view(text).substr(0, slash));
  const size_t n = slash < text.size() ? number(std::string_view(text).substr(slash + 1)) : 0;
  if (i < 1 || i > n)
    throw usage_error("--shard", "expected I/N with I from 1 to N, found '{}'", text)
        .hint("--shard 1/4, --shard 2/4, ... run a fourth of the points each");
  options.shard = i - 1;
  options.shards = n;
}

void interpret(Options& options, const ToolInfo& info) {
  options.format = one_of(options, "format", info.formats);
  if (options.is_set("json")) {
    if (std::ranges::find(info.formats, "json") == info.formats.end())
      throw usage_error("--json", "expected a tool that writes json; this one writes {}",
                        fmt::join(info.formats, ", "));
    options.format = "json";
  }
  one_of(options, "completion", shell_names());
  const std::string color = one_of(options, "color", {"auto", "always", "never"});
  options.color = color == "always"  ? Color::always
                  : color == "never" ? Color::never
                                     : Color::automatic;
  const char* level = std::getenv("TANDEM_LOG");
  if (level != nullptr && *level != '\0') {
    const std::vector<std::string> names = {"quiet", "normal", "verbose", "debug"};
    const auto at = std::ranges::find(names, level);
    if (at == names.end())
      throw usage_error("TANDEM_LOG", "expected one of {}, found '{}'", fmt::join(names, ", "),
                        level);
    options.verbosity = static_cast<int>(at - names.begin()) - 1;
  }
  if (const auto v = options.values.find("verbose"); v != options.values.end())
    options.verbosity = static_cast<int>(std::min<size_t>(2, v->second.size()));
  if (options.is_set("quiet")) options.verbosity = -1;
  if (const auto v = options.values.find("shard"); v != options.values.end())
    read_shard(v->second.back(), options);
  if (options.is_set("overwrite") && (options.is_set("append") || options.is_set("resume")))
    throw usage_error("--overwrite", "cannot be combined with --append or --resume");
}

}  // namespace

std::vector<recipe::Renaming> ToolInfo::upgraded(recipe::Node& over,
                                                 const recipe::Node& base) const {
  std::vector<recipe::Renaming> renamed = recipe::upgrade_keys(over, kind);
  if (upgrade != nullptr) std::ranges::move(upgrade(over, base), std::back_inserter(renamed));
  return renamed;
}

std::string Flag::long_name() const { return long_names(*this).front(); }

std::vector<Flag> common_flags(const ToolInfo& info) {
  std::vector<Flag> flags;
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  const auto sugar = [&](const char* names, const char* value, const char* text, const char* key) {
    if (recipe::find_field(schema, key) != nullptr) flags.push_back({names, value, text, key});
  };
  if (info.schema != nullptr) {
    flags.push_back(
        {"-r,--recipe", "FILE", "recipe file or installed name, - = standard input, repeatable"});
    flags.push_back({"-s,--set", "KEY=VALUE", "value of a recipe key in YAML syntax, repeatable"});
    if (info.sweeps)
      flags.push_back({"--sweep", "KEY=LIST",
                       "values of a key to run in turn: 1,2,4 or 1-8 or 0-64+16 or 1-256*2"});
    if (info.sweeps)
      flags.push_back({"--shard", "I/N", "points I, I+N, ... of a sweep, counted from 1"});
    sugar("-m,--model", "PATH", "model folder, .gguf file, known name, or synthetic:NAME",
          "model.path");
    if (const recipe::Field* output = recipe::find_field(schema, "output.path"))
      flags.push_back({"-o,--output", info.keeps_folder ? "FOLDER" : "PATH",
                       std::string(output->text), "output.path"});
  }
  if (info.schema != nullptr)
    flags.push_back({"--upgrade-recipe", "FILE",
                     info.upgrade == nullptr
                         ? "print a recipe file with current key names"
                         : "print a recipe file with current key names. Comments in sections that "
                           "change form are lost"});
  flags.push_back({"--overwrite", "",
                   info.keeps_folder ? "start again in a folder that contains a run"
                                     : "replace an existing output file"});
  if (recipe::find_field(schema, "output.path") != nullptr)
    flags.push_back({"--wait", "", "wait until no other program writes to the output, then start"});
  if (info.appends) flags.push_back({"--append", "", "add records to an existing output file"});
  if (info.resumes) flags.push_back({"--resume", "", "continue the run in the output file"});
  if (info.prints_records)
    flags.push_back(
        {"--from", "FILE", "print the records in FILE in --format, without a measurement"});
  std::string forms = fmt::format("output format: {}", fmt::join(info.formats, ", "));
  if (info.formats.back() == "flat")
    forms += ". docs/reference.md lists the fields of csv and flat";
  if (info.formats.back() == "results") forms += " (one JSON line per prompt)";
  flags.push_back({"--format", "FORM", forms, "", info.formats.front()});
  if (std::ranges::find(info.formats, "json") != info.formats.end())
    flags.push_back({"--json", "", "short for --format json"});
  sugar("--seed", "N", "random seed", "run.seed");
  sugar("-t,--threads", "N", "number of CPU threads, 0 = all physical cores", "run.threads");
  sugar("--device", "DEVICE", "device: auto, cpu, cuda or cuda:N", "run.device");
  if (info.schema != nullptr) {
    flags.push_back({"--dry-run", "", "print the plan (memory, steps) and exit"});
    flags.push_back({"--check", "", "check the recipe and paths, then exit"});
    flags.push_back({"--print-recipe", "[=diff]",
                     "print the effective recipe with origins (diff = only the keys that are "
                     "set)"});
    if (recipe::find_field(schema, "model.path") != nullptr)
      flags.push_back({"--list-models", "", "list the model names that -m accepts"});
    flags.push_back({"--list-recipes", "", "list the recipe names that -r accepts"});
    flags.push_back({"--help-recipe", "[=SECTION]",
                     "list all recipe keys, or those of a section, also with --format json"});
  }
  flags.push_back({"-v,--verbose", "", "more messages on standard error, twice = debug"});
  flags.push_back({"-q,--quiet", "", "only errors on standard error"});
  flags.push_back({"--color", "WHEN", "colored output: auto, always or never", "", "auto"});
  flags.push_back({"--no-progress", "", "no progress line"});
  flags.push_back({"-h,--help", "", "print this help (--help=SECTION = --help-recipe=SECTION)"});
  flags.push_back({"--completion", "SHELL", "print the completion script of bash, zsh or fish"});
  flags.push_back({"--man", "", "print the manual page in roff format"});
  flags.push_back({"-V,--version", "", "print the version, with -v also the environment"});
  return flags;
}

std::vector<Flag> all_flags(const ToolInfo& info) {
  std::vector<Flag> flags = info.flags;
  for (Flag& flag : common_flags(info)) flags.push_back(std::move(flag));
  return flags;
}

bool Options::is_set(const std::string& long_name) const {
  const auto found = values.find(long_name);
  return found != values.end() && found->second.back() != "false";
}

namespace {

/// A word may follow after =, as in --print-recipe=diff.
bool takes_word(const Flag& flag) { return flag.value.starts_with("[="); }

/// What a flag gives its key.
std::string key_value(const Flag& flag, const std::string& value) {
  if (!flag.value.empty()) return value;
  return value == "false" ? flag.off : flag.on;
}

}  // namespace

Options parse_options(const ToolInfo& info, const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  const std::vector<Flag> flags = all_flags(info);
  std::map<const CLI::Option*, const Flag*> flag_of;
  for (const Flag& flag : flags) {
    const bool negatable = flag.value.empty() && !flag.long_name().starts_with("no-");
    CLI::Option* option =
        flag.value.empty() || takes_word(flag)
            ? app.add_flag(flag.names + (negatable ? ",!--no-" + flag.long_name() : ""))
            : app.add_option(flag.names)->expected(1)->allow_extra_args(false);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    flag_of[option] = &flag;
  }
  Options options;
  const auto end = std::ranges::find(arguments, "--");
  std::vector<std::string> words = with_empty_values({arguments.begin(), end});
  const std::string last = words.empty() ? "" : words.back();
  std::ranges::reverse(words);  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::ArgumentMismatch&) {
    throw usage_error(last, "needs a value").hint("--help shows the form of each flag");
  } catch (const CLI::ParseError& e) {
    throw usage_error("", "{}", e.what()).hint("--help lists all flags");
  }
  std::vector<std::string> rest = app.remaining();
  refuse_unknown_flags(rest, info);
  if (end != arguments.end()) rest.insert(rest.end(), end + 1, arguments.end());

  // One entry of parse_order a written flag, in command-line order.
  std::map<const CLI::Option*, size_t> seen;
  size_t n_set = 0;
  for (const CLI::Option* option : app.parse_order()) {
    const Flag& flag = *flag_of.at(option);
    const std::string name = flag.long_name();
    const std::string value = option->results().at(seen[option]++);
    if (flag.value.empty() && value != "true" && value != "false")
      throw usage_error("--" + name, "takes no value, found '{}'", value)
          .hint("leave it out to switch it off, or write =true or =false");
    if (takes_word(flag) && value != "true" && flag.value != "[=" + value + "]")
      throw usage_error("--" + name, "expected no value or '{}', found '{}'",
                        std::string_view(flag.value).substr(2, flag.value.size() - 3), value);
    options.values[name].push_back(value);
    if (name == "recipe") options.recipes.push_back(value);
    if (name == "sweep") options.sweeps.push_back(value);
    if (name == "set")
      options.settings.push_back({false, "", value, fmt::format("--set #{}", ++n_set)});
    else if (!flag.key.empty())
      options.settings.push_back({true, flag.key, key_value(flag, value), "--" + name});
  }
  take_positional(rest, info, options);
  refuse_repeats(info, options);
  interpret(options, info);
  return options;
}

}  // namespace tandem::cli
