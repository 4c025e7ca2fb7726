#include "cli/completion.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "cli/help.h"
#include "io/quote.h"

namespace tandem::cli {
namespace {

/// A recipe key, or a flag.
struct Completed {
  std::string name;                     // cache.kind; of a flag all names, -p,--prompt
  std::string text;                     // what it is for
  std::string value;                    // form of a flag's value, empty without one
  std::vector<std::string> words = {};  // that may be its value
};

/// The words among the values of a field, as its type lists them: none|auto|int has two.
std::vector<std::string> words_of(std::string type) {
  static const std::vector<std::string_view> kForms = {"alpha<number", "int",    "int-int",
                                                       "list of them", "number", "path"};
  if (type == "bool") return {"true", "false"};
  if (type.starts_with("list of ")) type.erase(0, 8);
  std::vector<std::string> words;
  for (size_t begin = 0, end = 0; begin <= type.size(); begin = end + 1) {
    end = std::min(type.find('|', begin), type.size());
    words.push_back(type.substr(begin, end - begin));
  }
  if (words.size() == 1) return {};  // a type's name
  std::erase_if(words, [&](const std::string& word) {
    return std::ranges::find(kForms, word) != kForms.end();
  });
  return words;
}

void append_keys_of(const recipe::Field& section, const std::string& name,
                    std::vector<Completed>& keys) {
  for (const recipe::Field& field : section.fields) {
    const std::string key =
        name.empty() ? std::string(field.name) : fmt::format("{}.{}", name, field.name);
    if (field.is_section())
      append_keys_of(field, key, keys);
    else
      keys.push_back({key, std::string(field.text), "", words_of(field.value->type())});
  }
}

/// Holds the tables that completion scripts and the manual page print.
struct Tables {
  std::vector<Completed> flags, keys;
};

Tables tables_of(const ToolInfo& info) {
  Tables tables;
  const recipe::Field schema = info.schema != nullptr ? info.schema() : recipe::Field{};
  append_keys_of(schema, "", tables.keys);
  for (const Flag& flag : all_flags(info)) {
    Completed& entry = tables.flags.emplace_back(flag.names, flag.text, flag.value);
    const std::string name = flag.long_name();
    const recipe::Field* field =
        flag.key.empty() || flag.value.empty() ? nullptr : recipe::find_field(schema, flag.key);
    if (field != nullptr) entry.words = words_of(field->value->type());
    if (name == "format") entry.words = info.formats;
    if (name == "completion") entry.words = shell_names();
    if (name == "color") entry.words = {"auto", "always", "never"};
    if (name == "device") entry.words = {"auto", "cpu", "cuda"};
  }
  return tables;
}

std::vector<std::string> names_of(const Completed& flag) {
  std::vector<std::string> names;
  for (size_t begin = 0, end = 0; begin < flag.name.size(); begin = end + 1) {
    end = std::min(flag.name.find(',', begin), flag.name.size());
    names.push_back(flag.name.substr(begin, end - begin));
  }
  return names;
}

/// An identifier of shells.
std::string identifier(const std::string& tool) { return "_" + io::replace_all(tool, "-", "_"); }

/// A text in single quotes.
std::string quoted(const std::string& text, std::string_view quote) {
  return "'" + io::replace_all(text, "'", quote) + "'";
}

/// Lines of a shell's `case` that print or add the words of each name.
std::string cases(const std::vector<Completed>& list, std::string_view indent,
                  std::string_view command) {
  std::string text;
  for (const Completed& entry : list)
    if (!entry.words.empty())
      text += fmt::format("{}{}) {} {} ;;\n", indent, fmt::join(names_of(entry), "|"), command,
                          fmt::join(entry.words, " "));
  return text;
}

/// Bash cuts words at = and : too, so that cache.kind=full is three.
constexpr const char* kBash =
    R"bash(# bash completion of @TOOL@, as @TOOL@ --completion bash prints it
@NAME@_values() {
  case $1 in
@CASES@  esac
}
@NAME@() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words
  local tool=${COMP_WORDS[0]}
  if [[ $cur == [=:] ]]; then
    [[ $cur == : ]] && before=:
    cur=
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  case $before in
    -s|--set|--sweep)
      COMPREPLY=($(compgen -S = -W "@KEYS@" -- "$cur"))
      compopt -o nospace 2> /dev/null
      return ;;
    -r|--recipe) words=$("$tool" --list-recipes 2> /dev/null | cut -d ' ' -f 1) ;;
    -m|--model|model.path|draft.path|spec.draft.path|spec.draft.inner.path) words=$("$tool" --list-models 2> /dev/null | cut -d ' ' -f 1) ;;
    :) words=$("$tool" --list-models 2> /dev/null | sed -n 's/^synthetic:\([^ ]*\).*/\1/p') ;;
    *) words=$(@NAME@_values "$before") ;;
  esac
  [[ $cur == -* ]] && words="@FLAGS@"
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F @NAME@ @TOOL@
)bash";

std::string bash_script(const Tables& tables) {
  std::vector<std::string> keys, flags;
  for (const Completed& key : tables.keys) keys.push_back(key.name);
  for (const Completed& flag : tables.flags)
    for (std::string& name : names_of(flag)) flags.push_back(std::move(name));
  const std::string all = cases(tables.flags, "    ", "echo") + cases(tables.keys, "    ", "echo");
  return io::replace_all(io::replace_all(io::replace_all(kBash, "@CASES@", all), "@KEYS@",
                                         fmt::format("{}", fmt::join(keys, " "))),
                         "@FLAGS@", fmt::format("{}", fmt::join(flags, " ")));
}

constexpr const char* kZsh = R"zsh(#compdef @TOOL@
# zsh completion of @TOOL@, as @TOOL@ --completion zsh prints it
@NAME@_set() {
  if compset -P 1 '*='; then
    case ${IPREFIX%=} in
@CASES@      *) _files ;;
    esac
  else
    local -a keys=(@KEYS@)
    compadd -S = -a keys
  fi
}
@NAME@_named() {
  compadd -- ${(f)"$(${words[1]} --list-$1 2> /dev/null | cut -d ' ' -f 1)"}
  _files
}
_arguments -s \
@FLAGS@
)zsh";

std::string zsh_script(const Tables& tables) {
  std::vector<std::string> keys, flags;
  for (const Completed& key : tables.keys) keys.push_back(key.name);
  for (const Completed& flag : tables.flags) {
    const std::vector<std::string> names = names_of(flag);
    std::string text = flag.text;
    for (const char* special : {"[", "]", ":"})
      text = io::replace_all(text, special, std::string("\\") + special);
    std::string action =
        flag.words.empty() ? "_files" : fmt::format("({})", fmt::join(flag.words, " "));
    if (names.back() == "--set" || names.back() == "--sweep") action = "@NAME@_set";
    // After a space, _arguments does not put options before the word.
    if (names.back() == "--recipe") action = " @NAME@_named recipes";
    if (names.back() == "--model") action = " @NAME@_named models";
    const std::string value =
        flag.value.empty() || flag.value[0] == '['
            ? ""
            : fmt::format(":{}:{}", io::replace_all(flag.value, ":", ""), action);
    for (const std::string& name : names)
      flags.push_back("  " + quoted(fmt::format("*{}[{}]{}", name, text, value), R"('\'')"));
  }
  return io::replace_all(
      io::replace_all(io::replace_all(kZsh, "@CASES@", cases(tables.keys, "      ", "compadd --")),
                      "@KEYS@", fmt::format("{}", fmt::join(keys, " "))),
      "@FLAGS@", fmt::format("{}", fmt::join(flags, " \\\n")));
}

std::string fish_script(const Tables& tables) {
  std::string text = "# fish completion of @TOOL@, as @TOOL@ --completion fish prints it\n";
  std::vector<std::string> settings;
  for (const Completed& key : tables.keys) {
    settings.push_back(key.name + "=");
    for (const std::string& word : key.words) settings.push_back(key.name + "=" + word);
  }
  for (const Completed& flag : tables.flags) {
    text += "complete -c @TOOL@";
    const std::vector<std::string> names = names_of(flag);
    for (const std::string& name : names)
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    std::vector<std::string> words = flag.words;
    std::string from;
    if (names.back() == "--set" || names.back() == "--sweep") words = settings;
    if (names.back() == "--recipe") from = "recipes";
    if (names.back() == "--model") from = "models";
    if (!from.empty())
      text += fmt::format(
          " -r -a '(@TOOL@ --list-{} 2> /dev/null | string replace -r \" .*\" \"\")'", from);
    else if (!words.empty())
      text += fmt::format(" -x -a '{}'", fmt::join(words, " "));
    else if (!flag.value.empty() && flag.value[0] != '[')
      text += " -r";
    text += " -d " + quoted(flag.text, "\\'") + "\n";
  }
  return text;
}

std::string roff(std::string text) {
  text = io::replace_all(io::replace_all(text, "\\", "\\e"), "-", "\\-");
  text = io::replace_all(io::replace_all(text, "\n.", "\n\\&."), "\n'", "\n\\&'");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

std::string roff_entry(const std::string& name, const std::string& text) {
  return ".TP\n.B " + roff(name) + "\n" + roff(text) + "\n";
}

}  // namespace

const std::vector<std::string>& shell_names() {
  static const std::vector<std::string> names = {"bash", "zsh", "fish"};
  return names;
}

std::string completion_script(const ToolInfo& info, const std::string& shell) {
  const Tables tables = tables_of(info);
  const std::string script = shell == "bash"  ? bash_script(tables)
                             : shell == "zsh" ? zsh_script(tables)
                                              : fish_script(tables);
  return io::replace_all(io::replace_all(script, "@NAME@", identifier(info.name)), "@TOOL@",
                         info.name);
}

std::string man_page(const ToolInfo& info) {
  const Tables tables = tables_of(info);
  std::string title = info.name;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string version = version_text(info, false);
  version.pop_back();
  std::string page = fmt::format(
      ".TH {} 1 \"\" \"{}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n[flags]{}\n.SH "
      "EXAMPLES\n.nf\n",
      roff(title), roff(version), roff(info.name), roff(info.purpose), roff(info.name),
      info.positional.empty() ? "" : " [" + info.positional + "]");
  for (const std::string& example : info.examples) page += roff(example) + "\n";
  page += ".fi\n.SH FLAGS\n";
  for (const Completed& flag : tables.flags) {
    std::string names = io::replace_all(flag.name, ",", ", ");
    if (!flag.value.empty()) names += (flag.value[0] == '[' ? "" : " ") + flag.value;
    page += roff_entry(names, flag.text);
  }
  if (!tables.keys.empty()) page += ".SH RECIPE KEYS\n";
  for (const Completed& key : tables.keys) {
    std::string text = key.text;
    if (!key.words.empty()) text += fmt::format(" ({})", fmt::join(key.words, ", "));
    page += roff_entry(key.name, text);
  }
  const std::string help = help_text(info, 80);
  const size_t end = help.find("\nexit status:");
  if (end != std::string::npos)
    page += ".SH EXIT STATUS AND ENVIRONMENT\n.nf" + roff(help.substr(end)) + ".fi\n";
  return page;
}

}  // namespace tandem::cli
