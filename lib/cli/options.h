#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/line_reader.h"
#include "cli/terminal.h"
#include "recipe/fields.h"
#include "recipe/upgrade.h"

namespace tandem::cli {

/// One command-line flag, of all tools or of one.
struct Flag {
  std::string names;                       // "-p,--prompt", "--temperature,--temp"
  std::string value;                       // "TEXT"; empty = a switch
  std::string text;                        // one line of help
  std::string key = {};                    // recipe key that it sets; empty = none
  std::string fallback = {};               // default shown by help, for flags without a key
  std::string on = "true", off = "false";  // a switch's values for its key

  std::string long_name() const;  // "prompt": the first long one
};

/// A key's value in runs without a recipe, unless it is set, or one of `unless` is.
struct BareSetting {
  std::string key, value;
  std::vector<std::string> unless = {};  // other keys
};

/// Formats of tools that print records: tables, one number a cell, the records, their main fields.
inline const std::vector<std::string> kRecordFormats = {"text", "md",    "csv",
                                                        "json", "jsonl", "flat"};

/// A tool's description of itself.
struct ToolInfo {
  std::string name;
  std::string purpose;                  // one line
  std::string kind = {};                // recipe kind that it reads
  std::vector<std::string> examples;    // whole command lines that run as written
  std::vector<Flag> flags = {};         // its own
  std::string positional = {};          // that a word without a flag is for, by long name
  recipe::Field (*schema)() = nullptr;  // recipe::schema_of<T>; null = no recipe
  std::vector<BareSetting> bare = {};   // all depend on the first
  /// Rewrites old keys of a recipe or of settings that lie over `base`, after plain renamings.
  std::vector<recipe::Renaming> (*upgrade)(recipe::Node& over, const recipe::Node& base) = nullptr;
  std::vector<std::string> formats = {"text"};  // accepted by --format, the first is the default
  bool sweeps = false;                          // --sweep, --shard
  bool appends = false;                         // --append
  bool resumes = false;                         // --resume
  bool prints_records = false;                  // --from; set by run_tool
  bool keeps_folder = false;                    // output.path is a folder, which the tool looks at
  bool checks_output = false;                   // output.path may be a file or a folder: it looks
  /// Reads what a user types at the terminal; null = the tool reads nothing there.
  std::unique_ptr<LineReader> (*line_reader)(const std::string& tool) = nullptr;

  /// Rewrites all old keys.
  std::vector<recipe::Renaming> upgraded(recipe::Node& over, const recipe::Node& base) const;
};

/// The uniform flags that make sense for this tool, then its own.
std::vector<Flag> common_flags(const ToolInfo& info);
std::vector<Flag> all_flags(const ToolInfo& info);

/// A parsed command line.
struct Options {
  struct Setting {
    bool literal;       // value of a flag, not YAML
    std::string key;    // of a literal
    std::string text;   // KEY=VALUE, or the literal
    std::string label;  // "--set #2", "--model"
  };
  std::vector<std::string> recipes;
  std::vector<Setting> settings;  // in command-line order
  std::vector<std::string> sweeps;
  size_t shard = 0, shards = 1;  // of a sweep's points those with (place from 0) % shards == shard
  std::map<std::string, std::vector<std::string>> values;  // by long name; switches: "true"/"false"
  std::string format;
  int verbosity = 0;
  Color color = Color::automatic;

  bool is_set(const std::string& long_name) const;
};

/// errors   kind usage: unknown flag (with the nearest name), missing or unsupported value, stray
///          argument
Options parse_options(const ToolInfo& info, const std::vector<std::string>& arguments);

}  // namespace tandem::cli
