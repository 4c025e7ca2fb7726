#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "decode/run_context.h"
#include "io/writer_lock.h"
#include "ranks/spawn.h"
#include "recipe/fields.h"
#include "recipe/sweep.h"

namespace tandem::cli {

/// What names a point of a sweep in records.
struct PointName {
  std::string sha256;                            // of the recipe
  std::string id;                                // its first 12 hex digits
  recipe::SweepPoint set;                        // the swept keys and their values
  std::shared_ptr<const nlohmann::json> record;  // group `recipe` of a result record
};

/// One point of a sweep: its recipe and its name.
template <class T>
struct Point : PointName {
  T recipe;
};

/// What main_wrapper hands to a tool.
class Context : public decode::RunContext {
 public:
  Context(const ToolInfo& info, Options options, Terminal& terminal, Output& out);

  /// The effective recipe: files, then --set and flags in their order, strictly checked; one for
  /// every point of --sweep and the recipe's sweep section that --shard leaves, one point without
  /// either. Serves --print-recipe and --check, after which the tool's body does not go on. Sets
  /// the thread count.
  /// errors   kind recipe, usage, input (a named file is missing), device (CUDA in a CPU build)
  template <class T>
  std::vector<Point<T>> load_points() {
    build_tree();
    std::vector<Point<T>> points;
    for (recipe::SweepPoint& set : sweep_points()) {
      Point<T>& point = points.emplace_back();
      point.set = std::move(set);
      read_point(recipe::fields_of(point.recipe), point, points.size() == 1);
    }
    finish_loading();
    return points;
  }

  bool is_set(const std::string& flag) const { return options_.is_set(flag); }
  /// Last value of one of the tool's own flags, by long name.
  std::optional<std::string> value(const std::string& flag) const;
  const std::vector<std::string>& values(const std::string& flag) const;

  const std::string& format() const { return options_.format; }
  bool dry_run() const override { return is_set("dry-run"); }
  /// Whether --dry-run prints its plan as JSON: only if asked, since some tools write nothing else.
  bool plans_as_json() const {
    return is_set("json") || (is_set("format") && format().starts_with("json"));
  }
  /// A line of such a plan; with --format json an element of one array.
  void write_plan(const std::string& json);
  void end_plans();
  /// The file of --from.
  /// errors   kind usage: flags that only a measurement needs
  std::optional<std::filesystem::path> records_to_print() const;
  const ranks::Place& place() const override { return place_; }
  const std::shared_ptr<ranks::Group>& group() const override { return group_; }
  /// As many CPU threads as run.threads says; 0 = all usable cores, shared with ranks of this
  /// machine.
  void use_threads(int n) const;
  bool resume() const { return is_set("resume"); }
  /// How --overwrite, --append and --resume say to open output.path.
  FileMode file_mode() const;
  /// Group `recipe` of an earlier record in the form of this version: present keys, defaults of
  /// those that it lacks, and the hash of both. It stays if this tool cannot read it.
  nlohmann::json upgraded(const nlohmann::json& group) const;
  /// Says which keys of the recipe and of settings have new names.
  void note_renamed() const;
  /// What they say of a file that takes an output's name during the run.
  io::Existing existing() const { return existing_in(file_mode()); }

  void show(std::string_view text, int verbosity) const override { terminal.note(text, verbosity); }
  void note_once(const std::string& text) const override { terminal.note_once(text); }
  void warn(const std::string& text) const override { terminal.warn(text); }
  void print(std::string_view line) const override { out.line(line); }
  std::unique_ptr<decode::ProgressLine> progress(std::string label, double total, std::string unit,
                                                 double begun = 0) const override {
    return std::make_unique<Progress>(terminal, std::move(label), total, std::move(unit), begun);
  }
  bool signalled() const override { return interrupted() != 0; }
  bool is_interrupted() const override { return cli::is_interrupted(); }
  bool agree_interrupted() const override { return cli::agree_interrupted(); }

  const ToolInfo& info;
  Terminal& terminal;  // stderr
  Output& out;         // stdout

 private:
  void build_tree();
  recipe::Node setting_node(const Options::Setting& setting, const recipe::Field& schema) const;
  /// Rewrites the old keys of a layer.
  std::vector<recipe::Renaming> upgrade(recipe::Node& over, const recipe::Node& base);
  std::vector<recipe::Renaming> upgrade_axis(recipe::SweepAxis& axis) const;
  /// Adds the settings of a run without a recipe.
  void add_bare_settings();
  /// errors   kind usage: a shard without points
  std::vector<recipe::SweepPoint> sweep_points() const;
  /// Fills the fields of a point's recipe, and its name.
  void read_point(recipe::Field fields, PointName& point, bool first);
  recipe::Node tree_at(const recipe::SweepPoint& set) const;
  /// Finds the other ranks, if the recipe or a launcher says that there are any.
  void meet(const recipe::Field& fields);
  /// Starts the others on this machine.
  void start_ranks();
  ranks::Facts facts(const recipe::Field& fields) const;
  /// --print-recipe, thread count, device and output files, from the first point.
  void begin(const recipe::Field& fields, const recipe::Node& tree);
  /// Takes the locks of output files and folders, and finds out what would stop them.
  void claim_outputs(const recipe::Field& fields);
  void finish_loading() const;  // --check
  nlohmann::json record(const recipe::Field& fields) const;

  Options options_;
  recipe::Node tree_;
  std::vector<recipe::Renaming> renamed_;
  std::vector<recipe::SweepAxis> axes_;
  ranks::Place place_;
  std::unique_ptr<ranks::Spawned> spawned_;  // outlives the group
  std::shared_ptr<ranks::Group> group_;
  std::vector<std::unique_ptr<io::WriterLock>> locks_;  // of what this run writes
  mutable std::map<std::string, std::shared_ptr<const nlohmann::json>> upgraded_;  // by sha256
  int n_plans_ = 0;  // elements of the array
};

}  // namespace tandem::cli
