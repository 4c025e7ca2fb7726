#include "cli/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "cli/help.h"
#include "cli/main_wrapper.h"
#include "cli/search_path.h"
#include "cli/threads.h"
#include "decode/fit/placement.h"
#include "recipe/load.h"
#include "tensor/cuda.h"

namespace tandem::cli {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::localtime_r(&now, &day);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &day)};
}

/// Flags repeated for one list key add up to one list.
/// splits   a flag may give several items, separated by commas
recipe::Node literal_list(const std::vector<Options::Setting>& settings, const std::string& key,
                          bool splits) {
  recipe::Node list;
  list.kind = recipe::Node::Kind::list;
  for (const Options::Setting& setting : settings) {
    if (!setting.literal || setting.key != key) continue;
    size_t comma = 0;
    for (size_t at = 0; comma != std::string::npos; at = comma + 1) {
      comma = splits ? setting.text.find(',', at) : std::string::npos;
      list.items.push_back(
          recipe::literal_node(setting.text.substr(at, comma - at), setting.label));
    }
  }
  list.origin = list.items.back().origin;
  return list;
}

}  // namespace

Context::Context(const ToolInfo& tool, Options options, Terminal& stderr_, Output& stdout_)
    : info(tool), terminal(stderr_), out(stdout_), options_(std::move(options)) {
  terminal.set_color(options_.color);
  out.set_color(options_.color);
  terminal.set_progress(!options_.is_set("no-progress"));
  terminal.set_verbosity(options_.verbosity);
}

std::optional<std::string> Context::value(const std::string& flag) const {
  const auto& all = values(flag);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

const std::vector<std::string>& Context::values(const std::string& flag) const {
  static const std::vector<std::string> none;
  const auto found = options_.values.find(flag);
  return found == options_.values.end() ? none : found->second;
}

void Context::write_plan(const std::string& json) {
  if (format() == "json")
    out.write((n_plans_++ == 0 ? "[\n" : ",\n") + json);
  else
    out.line(json);
}

void Context::end_plans() {
  if (n_plans_ > 0) out.write("\n]\n");
}

std::optional<std::filesystem::path> Context::records_to_print() const {
  const auto path = value("from");
  if (!path) return {};
  const bool chooses = !options_.recipes.empty() || !options_.settings.empty() ||
                       !options_.sweeps.empty() || is_set("resume") || dry_run();
  if (chooses)
    throw usage_error(
        "--from",
        "prints the records of a file and takes no recipe, setting, sweep, --resume or --dry-run")
        .hint("leave out all flags except --format, and redirect the output with >");
  return *path;
}

FileMode Context::file_mode() const {
  if (is_set("append") || is_set("resume")) return FileMode::append;
  return is_set("overwrite") ? FileMode::overwrite : FileMode::create;
}

void Context::build_tree() {
  tree_ = {};
  tree_.kind = recipe::Node::Kind::map;
  for (const std::string& name : options_.recipes) {
    const auto path = recipe::find_recipe(name, recipe_folders());
    if (path == "-" && ::isatty(STDIN_FILENO) == 1)
      throw usage_error("--recipe", "'-' reads a recipe from standard input, which is a terminal")
          .hint("pipe a recipe in, or name a file");
    recipe::merge(tree_, recipe::load_recipe(path, info.kind, recipe_folders(),
                                             [&](recipe::Node& over, const recipe::Node& base) {
                                               return upgrade(over, base);
                                             }));
  }
  const recipe::Field schema = info.schema();
  const recipe::Node files = tree_;
  const size_t n_renamed = renamed_.size();
  // An old key may depend on settings after it: the second time, all are known.
  for (int time = 0; time < (info.upgrade != nullptr ? 2 : 1); ++time) {
    const recipe::Node known = std::exchange(tree_, files);
    renamed_.resize(n_renamed);
    for (const Options::Setting& setting : options_.settings) {
      recipe::Node one = setting_node(setting, schema);
      upgrade(one, known);
      recipe::merge(tree_, std::move(one));
    }
    if (options_.recipes.empty()) add_bare_settings();
  }
  // A chat from the command line is of today; a recipe gives the same prompt on any day.
  if (is_set("chat") && options_.recipes.empty() && tree_.find_path("chat.date") == nullptr)
    recipe::merge(tree_, recipe::nest("chat.date", recipe::literal_node(today(), "--chat")));
  axes_ = recipe::take_sweep(tree_);
  if (info.sweeps) recipe::take_lists(axes_, tree_, schema);
  for (size_t i = 0; i < options_.sweeps.size(); ++i)
    recipe::add_sweep(axes_, options_.sweeps[i], fmt::format("--sweep #{}", i + 1));
  for (recipe::SweepAxis& axis : axes_)
    std::ranges::move(upgrade_axis(axis), std::back_inserter(renamed_));
  for (const recipe::SweepAxis& axis : axes_)
    if (axis.key.starts_with("output."))
      throw recipe_error(axis.values.front().origin.text(),
                         "{} cannot be swept: all points of a sweep share one output", axis.key)
          .hint("each record names its point; for separate files, run the tool once for each");
  if (!info.sweeps && !axes_.empty())
    throw recipe_error("sweep", "{} runs one point, not a sweep", info.name)
        .hint("remove the sweep section, or use a tool that sweeps");
}

recipe::Node Context::setting_node(const Options::Setting& setting,
                                   const recipe::Field& schema) const {
  recipe::Node one;
  one.kind = recipe::Node::Kind::map;
  if (!setting.literal) {
    recipe::apply_setting(one, setting.text, setting.label);
    return one;
  }
  const recipe::Field* field = recipe::find_field(schema, setting.key);
  const std::string type = field == nullptr ? "" : field->value->type();
  return recipe::nest(setting.key,
                      type.starts_with("list of")
                          ? literal_list(options_.settings, setting.key, type == "list of int")
                          : recipe::literal_node(setting.text, setting.label));
}

std::vector<recipe::Renaming> Context::upgrade(recipe::Node& over, const recipe::Node& base) {
  std::vector<recipe::Renaming> renamed = info.upgraded(over, base);
  renamed_.insert(renamed_.end(), renamed.begin(), renamed.end());
  return renamed;
}

std::vector<recipe::Renaming> Context::upgrade_axis(recipe::SweepAxis& axis) const {
  recipe::Node one;
  one.kind = recipe::Node::Kind::map;
  recipe::Node& list = one.entries.emplace_back(axis.key, recipe::Origin(), recipe::Node()).value;
  list.kind = recipe::Node::Kind::list;
  list.items = std::move(axis.values);
  std::vector<recipe::Renaming> renamed = recipe::upgrade_keys(one, info.kind);
  axis = {one.entries[0].key, std::move(one.entries[0].value.items)};
  if (info.upgrade == nullptr) return renamed;
  std::string key = axis.key;
  for (recipe::Node& value : axis.values) {
    recipe::Node nested = recipe::nest(axis.key, value);
    std::vector<recipe::Renaming> more = info.upgrade(nested, {});
    if (more.empty()) continue;
    // A value stays at its key, or has moved to one other.
    recipe::Node* moved = &nested;
    if (nested.find_path(axis.key) == nullptr) key.clear();
    while (key != axis.key && moved->kind == recipe::Node::Kind::map &&
           moved->entries.size() == 1) {
      key += (key.empty() ? "" : ".") + moved->entries[0].key;
      moved = &moved->entries[0].value;
    }
    value = key == axis.key ? *nested.find_path(key) : *moved;
    std::ranges::move(more, std::back_inserter(renamed));
  }
  axis.key = key;
  return renamed;
}

void Context::note_renamed() const {
  std::vector<std::string> texts;
  for (const recipe::Renaming& r : renamed_)
    if (std::ranges::find(texts, r.text()) == texts.end()) texts.push_back(r.text());
  if (!texts.empty()) note(fmt::format("recipe   keys have new names: {}", fmt::join(texts, ", ")));
}

void Context::add_bare_settings() {
  const auto is_set = [&](const std::string& key) { return tree_.find_path(key) != nullptr; };
  for (const BareSetting& bare : info.bare) {
    if (is_set(bare.key) || std::ranges::any_of(bare.unless, is_set)) {
      const recipe::Node* set = tree_.find_path(bare.key);
      if (&bare == &info.bare.front() && (set == nullptr || set->scalar != bare.value)) return;
      continue;
    }
    recipe::merge(tree_, recipe::nest(bare.key, recipe::literal_node(
                                                    bare.value, info.name + " without a recipe")));
  }
}

std::vector<recipe::SweepPoint> Context::sweep_points() const {
  std::vector<recipe::SweepPoint> all = recipe::sweep_points(axes_), own;
  for (size_t i = options_.shard; i < all.size(); i += options_.shards)
    own.push_back(std::move(all[i]));
  if (own.empty())
    throw usage_error("--shard", "part {} of {} is empty: the sweep has only {} points",
                      options_.shard + 1, options_.shards, all.size());
  return own;
}

void Context::read_point(recipe::Field fields, PointName& point, bool first) {
  const recipe::Node tree = tree_at(point.set);
  const recipe::Folders models = model_folders();
  recipe::read_fields(
      fields, tree, models,
      is_set("print-recipe") ? recipe::Completeness::partial : recipe::Completeness::whole);
  if (first) begin(fields, tree);
  recipe::check_inputs(fields, tree, models);
  nlohmann::json group = record(fields);
  for (const auto& [key, value] : point.set) group["swept"].push_back(key);
  point.record = std::make_shared<const nlohmann::json>(std::move(group));
  point.sha256 = (*point.record)["sha256"].get<std::string>();
  point.id = point.sha256.substr(0, 12);
}

recipe::Node Context::tree_at(const recipe::SweepPoint& set) const {
  recipe::Node tree = tree_;
  for (const auto& [key, value] : set) recipe::merge(tree, recipe::nest(key, value));
  return tree;
}

void Context::begin(const recipe::Field& fields, const recipe::Node& tree) {
  if (is_set("print-recipe")) {
    out.write(fmt::format("kind: {}\nversion: {}\n", info.kind, recipe::kSchemaVersion));
    out.write(recipe::dump_sweep(axes_));
    out.write(recipe::dump_yaml(
        fields, &tree,
        value("print-recipe") == "diff" ? recipe::Shown::written : recipe::Shown::all));
    throw EarlyExit{0};
  }
  if (recipe::find_field(fields, "run.world_size") != nullptr) meet(fields);
  if (const auto* threads = recipe::find_field(fields, "run.threads")) {
    const int n = threads->value->json().get<int>(), cores = usable_cores();
    use_threads(n);
    if (n > cores)
      warn(fmt::format(
          "run.threads: {} threads share {} usable core{}, so most of them wait. Set run.threads "
          "to {} or less, or to 0 for all cores",
          n, cores, cores == 1 ? "" : "s", cores));
  }
  if (const auto* device = recipe::find_field(fields, "run.device");
      device != nullptr && device->value->json().get<std::string>().starts_with("cuda") &&
      cuda::device_count() == 0 && !dry_run()) {
    const recipe::Node* node = tree.find_path("run.device");
    throw Error(ErrorKind::device, node != nullptr ? node->origin.text() : "run.device",
                cuda::why_none())
        .hint(cuda::built_in() ? "use --device cpu"
                               : "use --device cpu, or build with a CUDA compiler");
  }
  if (!dry_run() && !is_set("check") && place_.rank == 0) claim_outputs(fields);
}

void Context::meet(const recipe::Field& fields) {
  const auto json = [&](const char* key) { return recipe::find_field(fields, key)->value->json(); };
  const auto number = [&](const char* key) {
    const nlohmann::json n = json(key);
    return n.is_null() ? std::optional<int>() : n.get<int>();
  };
  const bool meets = !dry_run() && !is_set("check");
  place_ = ranks::find_place({.rank = number("run.rank"),
                              .world_size = number("run.world_size"),
                              .rendezvous = json("run.rendezvous").get<std::string>(),
                              .timeout_s = json("run.timeout").get<double>(),
                              .meets = meets},
                             [](const char* name) { return std::getenv(name); });
  // A list of GPUs is as many ranks, which this process starts.
  const int n_gpus = decode::gpus_named(json("run.device").get<std::string>());
  const bool starts = place_.alone() && n_gpus > 1;
  if (starts) place_.size = n_gpus;
  if (place_.alone() || !meets) return;
  if (starts) start_ranks();
  if (place_.rank > 0) {
    terminal.set_verbosity(-1);
    terminal.set_progress(false);
    out.mute();
  }
  const auto stuck = [&](const Error& error) {
    if (place_.rank == 0) terminal.error(error);
    std::_Exit(exit_status(error.kind()));
  };
  group_ = std::make_shared<ranks::Group>(
      place_, facts(fields),
      ranks::Group::Events{.interrupted = [] { return interrupted() != 0; }, .stuck = stuck});
  place_.local_rank = group_->local_rank();
  group_->require_equal("run.device", json("run.device").get<std::string>().substr(0, 4));
  agree_by([group = group_] { return group->agree_interrupted(); });
}

void Context::start_ranks() {
  place_.rendezvous =
      (std::filesystem::temp_directory_path() / fmt::format("tandem-ranks-{}", ::getpid()))
          .string();
  spawned_ = std::make_unique<ranks::Spawned>(place_.size, [&](int rank) {
    return std::vector<std::string>{"--set", fmt::format("run.rank={}", rank),
                                    "--set", fmt::format("run.world_size={}", place_.size),
                                    "--set", "run.rendezvous=" + place_.rendezvous};
  });
}

ranks::Facts Context::facts(const recipe::Field& fields) const {
  ranks::Facts facts = {{"the tool", info.name}, {"its version", version_text(info, false)}};
  nlohmann::json effective = recipe::to_json(fields);
  // What each rank has for itself.
  for (const char* key : {"rank", "world_size", "rendezvous", "timeout", "threads", "device"})
    effective["run"].erase(key);
  const nlohmann::json flat = effective.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string key = pointer.substr(1);
    std::ranges::replace(key, '/', '.');
    facts[key] = value.dump();
  }
  for (const Flag& flag : info.flags)
    if (flag.key.empty() && is_set(flag.long_name()))
      facts["--" + flag.long_name()] = fmt::format("{}", fmt::join(values(flag.long_name()), ", "));
  return facts;
}

void Context::use_threads(int n) const {
  const int here = group_ ? group_->local_size() : 1;
  cli::use_threads(n > 0 ? n : std::max(1, default_threads() / here));
}

void Context::claim_outputs(const recipe::Field& fields) {
  const auto claim = [&](const char* key) -> std::optional<std::filesystem::path> {
    const recipe::Field* field = recipe::find_field(fields, key);
    auto path = field != nullptr ? field->value->path() : std::nullopt;
    if (!path || path->empty() || *path == "-") return std::nullopt;
    const auto status = std::filesystem::status(*path);
    // Pipes and devices are for as many writers as like.
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
        !std::filesystem::is_directory(status))
      return path;
    locks_.push_back(std::make_unique<io::WriterLock>(
        *path, io::WriterLock::Waiting{.waits = is_set("wait"),
                                       .note =
                                           [&](const std::string& who) {
                                             note(fmt::format("{}: waiting for {}", path->string(),
                                                              who));
                                           },
                                       .interrupted = cli::is_interrupted}));
    if (const std::string& why = locks_.back()->why_open();
        !why.empty() && std::filesystem::exists(status))
      warn(fmt::format("{}: other programs may write to this file at the same time: {}",
                       path->string(), why));
    return path;
  };
  if (const auto path = claim("output.path"); path && !info.keeps_folder && !info.checks_output)
    claim_result(*path, file_mode());
  if (const auto state = claim("output.state")) check_new_file(*state, file_mode());
}

void Context::finish_loading() const {
  if (!is_set("check")) return;
  note_renamed();
  throw EarlyExit{0};
}

nlohmann::json Context::record(const recipe::Field& fields) const {
  nlohmann::json group = {{"sha256", recipe::recipe_hash(fields)},
                          {"effective", recipe::to_json(fields)}};
  if (!options_.recipes.empty())
    group["path"] = fmt::format("{}", fmt::join(options_.recipes, ", "));
  for (const Options::Setting& setting : options_.settings)
    group["overrides"].push_back(setting.literal ? setting.key + "=" + setting.text : setting.text);
  return group;
}

nlohmann::json Context::upgraded(const nlohmann::json& group) const {
  nlohmann::json now = group;
  if (!now.is_object() || !now["sha256"].is_string() || !now["effective"].is_object()) return group;
  auto& known = upgraded_[now["sha256"].get<std::string>()];
  if (!known) {
    nlohmann::json own = {{"sha256", now["sha256"]}, {"effective", now["effective"]}};
    try {
      recipe::Node tree = recipe::node_of(now["effective"], {});
      (void)info.upgraded(tree, {});
      recipe::Field fields = info.schema();
      recipe::read_recorded(fields, std::move(tree));
      own = {{"sha256", recipe::recipe_hash(fields)}, {"effective", recipe::to_json(fields)}};
    } catch (const Error&) {  // another kind or a later version wrote it
    }
    known = std::make_shared<const nlohmann::json>(std::move(own));
  }
  now.update(*known);
  if (now.contains("swept"))
    for (nlohmann::json& key : now["swept"]) {
      recipe::SweepAxis axis = {key.is_string() ? key.get<std::string>() : key.dump(), {}};
      (void)upgrade_axis(axis);
      key = axis.key;
    }
  return now;
}

}  // namespace tandem::cli
