#include "support/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/process.h"
#include "source_dir.h"

namespace tandem::support {
namespace {

using Json = nlohmann::json;
using testing::Outcome;
using testing::run_process;

constexpr int kPromptTokens = 330;  // beyond all windows of the models and the least budgets
constexpr int kWords = 128;         // ids of the smallest vocabulary, but for special ones

/// The tools lie next to the test, in a bundle for GPU machines too.
std::string tool_path(std::string_view tool) {
  static const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (folder / tool).string();
}

Words split(std::string_view settings) {
  Words words;
  std::istringstream in{std::string(settings)};
  for (std::string word; in >> word;) words.insert(words.end(), {"-s", word});
  return words;
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

std::string text_of(const Ids& ids) { return Json(ids).dump(); }

void expect_same(const std::string& subject, const Ids& found, const Ids& expected) {
  if (found != expected)
    throw Fault{fmt::format("{}: expected the ids {}, found {}", subject, text_of(expected),
                            text_of(found))};
}

/// The first message of a tool, without the tool's name and the folder of the model.
std::string message_of(const std::string& err, const std::string& model) {
  constexpr std::string_view kMark = ": error: ";
  const size_t begin = err.find(kMark);
  if (begin == std::string::npos) return {};
  std::string message = err.substr(begin + kMark.size());
  message.resize(std::min(message.size(), message.find('\n')));
  for (size_t at = 0; (at = message.find(model, at)) != std::string::npos;)
    message.replace(at, model.size(), "MODEL");
  return message;
}

constexpr int kUsage = 2, kDevice = 6;  // the exit statuses of refusals are among these

}  // namespace

Runner::Runner(const Family& family) : family_(family) {
  // Three times the same, so that prompt lookup finds something.
  for (int i = 0; i < kPromptTokens; ++i) {
    const int k = i % (kPromptTokens / 3);
    prompt_.push_back((7 * k * k + 3 * k + 5) % (kWords - 3) + 3);
  }
}

std::filesystem::path Runner::model() const {
  return test::source_dir() / "tests/data/models" / family_.folder;
}

std::string Runner::run(std::string_view tool, Words words) {
  words.insert(words.end(), {"-s", "model.compute=f32", "-s", "run.threads=1", "--no-progress",
                             "--device", place_ == Place::cpu ? "cpu" : "cuda"});
  if (place_ == Place::plan) words.insert(words.end(), {"--dry-run", "-s", "run.plan_for=h200"});
  const Outcome outcome = run_process(tool_path(tool), {.arguments = words});
  if (outcome.status == 0) return outcome.out;
  const std::string message = message_of(outcome.err, model().string());
  if (outcome.status >= kUsage && outcome.status <= kDevice && !message.empty())
    throw Refused{message};
  throw Fault{fmt::format("{} ended with status {}: {}", tool, outcome.status, outcome.err)};
}

std::vector<Ids> Runner::texts(std::string_view tool, Words words) {
  words.insert(words.begin(), {"-s", "run.context=512"});  // a method may set another
  if (std::ranges::find(words, "-n") == words.end())
    words.insert(words.end(), {"-n", std::to_string(kNewTokens)});
  if (place_ != Place::plan) words.insert(words.end(), {"--format", "results", "-q"});
  const std::string out = run(tool, std::move(words));
  std::vector<Ids> all;
  if (place_ == Place::plan) return all;
  for (const Json& line : json_lines(out)) {
    const auto i = line.at("seq").get<size_t>();
    all.resize(std::max(all.size(), i + 1));
    all[i] = line.at("ids").get<Ids>();
  }
  return all;
}

Ids Runner::text(std::string_view tool, Words words) {
  std::vector<Ids> all = texts(tool, std::move(words));
  if (place_ == Place::plan) return {};
  if (all.empty() || all[0].empty()) throw Fault{fmt::format("{} wrote no token", tool)};
  return all[0];
}

std::filesystem::path Runner::ids_file(std::string_view name, const Ids& ids) const {
  return folder_.write(name, text_of(ids));
}

Words Runner::prompt_words(const std::filesystem::path& file) const {
  return {"-m", model().string(), "--prompt-ids", file.string()};
}

const Ids& Runner::plain() {
  Ids& ids = plain_[place_];
  if (ids.empty()) {
    ids = text("pig-generate", prompt_words(ids_file("prompt.json", prompt_)));
    if (ids.size() < kNewTokens / 2) throw Fault{"the text of plain decoding is too short"};
  }
  return ids;
}

void Runner::check_golden() {
  const Json cases = read_json(test::source_dir() / "tests/data/golden/small" /
                               (std::string(family_.folder) + ".json"));
  const Json& golden = cases.back();
  Words words = prompt_words(ids_file("golden.json", golden.at("ids")));
  const Ids expected = golden.at("greedy_ids");
  words.insert(words.end(), {"-n", std::to_string(expected.size())});
  if (golden.contains("context"))  // longrope depends on the longest sequence
    words.insert(words.end(), {"-s", fmt::format("run.context={}", golden["context"].get<int>())});
  const Ids found = text("pig-generate", words);
  if (place_ == Place::plan) return;
  constexpr double kTie = 1e-2;
  const std::vector<double> gaps = golden.at("top1_minus_top2");
  for (size_t i = 0; i < expected.size() && gaps[i] > kTie; ++i)
    if (i >= found.size() || found[i] != expected[i])
      return expect_same("transformers' greedy text", found, expected);
}

void Runner::check_same_text(std::string_view tool, std::string_view settings) {
  Words words = prompt_words(ids_file("prompt.json", prompt_));
  for (std::string& word : split(settings)) words.push_back(std::move(word));
  const Ids found = text(tool, std::move(words));
  if (place_ != Place::plan) expect_same(fmt::format("{} {}", tool, settings), found, plain());
}

void Runner::check_runs(std::string_view tool, std::string_view settings) {
  Words words = prompt_words(ids_file("prompt.json", prompt_));
  for (std::string& word : split(settings)) words.push_back(std::move(word));
  (void)text(tool, std::move(words));
}

void Runner::check_batch() {
  const std::vector<Ids> prompts = {prompt_, Ids(prompt_.begin() + 20, prompt_.begin() + 90),
                                    Ids(prompt_.begin(), prompt_.begin() + 41)};
  std::string lines;
  for (const Ids& ids : prompts) lines += Json{{"ids", ids}}.dump() + "\n";
  const auto file = folder_.write("prompts.jsonl", lines);
  const std::vector<Ids> together =
      texts("pig-generate", {"-m", model().string(), "--prompts", file.string()});
  if (place_ == Place::plan) return;
  for (size_t i = 0; i < prompts.size(); ++i)
    expect_same("a batch", together.at(i),
                text("pig-generate", prompt_words(ids_file("alone.json", prompts[i]))));
}

void Runner::check_saved_state() {
  const auto state = folder_ / "state";
  const auto half = prompt_.begin() + kPromptTokens * 2 / 3;
  Words save = prompt_words(ids_file("begin.json", Ids(prompt_.begin(), half)));
  save.insert(save.end(), {"-n", "0", "-s", "output.state=" + state.string(), "--overwrite"});
  const Place place = place_;
  if (place == Place::plan) {
    (void)texts("pig-generate", save);
    place_ = Place::cpu;  // a plan reads the state, which the CPU must write
  }
  (void)texts("pig-generate", save);
  place_ = place;
  Words go_on = prompt_words(ids_file("end.json", Ids(half, prompt_.end())));
  go_on.insert(go_on.end(), {"-s", "model.state=" + state.string()});
  const Ids found = text("pig-generate", go_on);
  if (place_ != Place::plan) expect_same("a text after a saved state", found, plain());
}

std::filesystem::path Runner::divisible_config() const {
  Json config = read_json(model() / "config.json");
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  const int heads = text.at("num_attention_heads");
  const int head_dim = text.contains("head_dim") && text["head_dim"].is_number()
                           ? text["head_dim"].get<int>()
                           : text.at("hidden_size").get<int>() / heads;
  text["num_attention_heads"] = 4;
  text["num_key_value_heads"] = 2;
  text["hidden_size"] = 4 * head_dim;
  text["intermediate_size"] = 96;
  return folder_.write("config.json", config.dump());
}

void Runner::check_two_ranks() {
  const std::string model = "synthetic:" + divisible_config().string();
  const auto prompt = ids_file("prompt.json", prompt_);
  const Words words = {"-m", model, "--prompt-ids", prompt.string()};
  if (place_ != Place::cpu) {  // a GPU for each rank: planned only
    const Place place = place_;
    place_ = Place::plan;
    Words plan = words;
    plan.insert(plan.end(), {"-s", "run.world_size=2"});
    (void)texts("pig-generate", plan);
    place_ = place;
    return;
  }
  const Ids expected = text("pig-generate", words);
  std::array<std::string, 2> refused, fault;
  Ids found;
  const auto rank = [&](size_t r) {
    Words own = words;
    own.insert(own.end(), {"-s", fmt::format("run.rank={}", r), "-s", "run.world_size=2", "-s",
                           "run.rendezvous=" + (folder_ / "meet").string()});
    try {
      // Only rank 0 writes.
      if (r == 0) found = text("pig-generate", own);
      if (r == 1)
        (void)run("pig-generate", [&] {
          own.insert(own.end(), {"-s", "run.context=512", "-n", std::to_string(kNewTokens),
                                 "--format", "results", "-q"});
          return own;
        }());
    } catch (const Refused& e) {
      refused[r] = e.message;
    } catch (const Fault& e) {
      fault[r] = e.message;
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  if (!refused[0].empty()) throw Refused{refused[0]};
  for (const std::string& text : fault)
    if (!text.empty()) throw Fault{text};
  expect_same("two ranks", found, expected);
}

void Runner::check_thresholds() {
  const auto file = folder_ / "thresholds.json";
  const Place place = place_;
  if (place == Place::plan) place_ = Place::cpu;  // a plan reads the file
  (void)run("pig-eval", {"-m", model().string(), "-s", "eval.tasks=[channels]", "-s",
                         "eval.neurons.path=" + file.string(), "-s",
                         "data.path=" + ids_file("prompt.json", prompt_).string(), "--overwrite"});
  place_ = place;
  check_same_text("sequoia-generate",
                  "spec.draft=self draft.sparse.kind=cats_threshold spec.gamma=3 spec.verify=match "
                  "draft.sparse.thresholds=" +
                      file.string());
}

std::filesystem::path Runner::trained(const std::string& method) {
  const bool on_gpu = place_ == Place::gpu;
  const std::string name = method + (on_gpu ? "-gpu" : "");
  if (const auto found = trained_.find(name); found != trained_.end()) return found->second;
  std::string data;
  for (int i = 0; i < 4; ++i) {
    Ids ids;
    for (int k = 0; k < 24; ++k) ids.push_back((7 * k * k + 3 * k + 5 + i) % (kWords - 3) + 3);
    data += Json{{"ids", ids}}.dump() + "\n";
  }
  const auto file = folder_.write("train.jsonl", data), to = folder_ / name;
  Words words = {"-m", model().string(), "--data", file.string(),
                 "-o", to.string(),      "--lr",   "1e-2"};
  for (const std::string& word :
       split("train.steps=4 train.batch=4 train.save_every=1000 train.method=" + method))
    words.push_back(word);
  if (method == "s2ft")
    for (const std::string& word : split("train.select.ratios.o=0.5 train.select.ratios.d=0.5"))
      words.push_back(word);
  if (method == "dora")  // needs gate where a model stores gate and up as one matrix
    words.insert(words.end(), {"-s", "train.lora.targets=[q, k, v, o, gate, up, down]"});
  if (method == "spft") words.insert(words.end(), {"-s", "train.spft.ratio=0.5"});
  const Place place = place_;
  if (place == Place::plan) {
    (void)run("s2ft-train", words);
    place_ = Place::cpu;  // plans with an adapter read it
  }
  (void)run("s2ft-train", words);
  place_ = place;
  double last = INFINITY;
  std::ifstream metrics(to / "metrics.jsonl");
  std::string line;
  int steps = 0;
  for (; std::getline(metrics, line); ++steps) {
    const Json step = Json::parse(line);
    const double loss = step.at("loss").is_number() ? step["loss"].get<double>() : NAN;
    if (!(loss < last))
      throw Fault{fmt::format("step {} of {}: expected a loss below {}, found {}", steps, method,
                              last, loss)};
    last = loss;
  }
  if (steps < 4) throw Fault{fmt::format("expected 4 steps of {}, found {}", method, steps)};
  return trained_[name] = to;
}

void Runner::check_training(const std::string& method) {
  const auto run_folder = trained(method);
  (void)text("pig-generate", {"-m", (run_folder / "model").string(), "--prompt-ids",
                              ids_file("prompt.json", prompt_).string()});
}

Ids Runner::text_with(const std::string& adapters) {
  Words words = prompt_words(ids_file("prompt.json", prompt_));
  words.insert(words.end(), {"-s", "model.adapters=" + adapters});
  return text("pig-generate", words);
}

void Runner::check_merged_adapters() {
  for (const std::string method : {"s2ft", "lora", "dora"}) {
    const auto run_folder = trained(method);
    const Ids merged = text_with(fmt::format("[{{path: {}}}]", (run_folder / "adapter").string()));
    if (place_ == Place::plan) continue;
    const Ids model = text("pig-generate", {"-m", (run_folder / "model").string(), "--prompt-ids",
                                            ids_file("prompt.json", prompt_).string()});
    expect_same("the base with an adapter of " + method, merged, model);
    if (merged == plain()) throw Fault{"an adapter of " + method + " changes nothing"};
  }
}

void Runner::check_named_adapters() {
  const auto adapter = [&](const std::string& method) {
    return (trained(method) / "adapter").string();
  };
  const auto check = [&](const std::string& first, const std::string& second,
                         const std::string& use) {
    std::string lines;
    for (const char* name : {"a", "", "b"}) {
      Json line = {{"ids", prompt_}};
      if (*name != '\0') line["adapter"] = name;
      lines += line.dump() + "\n";
    }
    const std::vector<Ids> found =
        texts("pig-generate",
              {"-m", model().string(), "--prompts", folder_.write("named.jsonl", lines).string(),
               "-s", "run.adapters=" + use, "-s",
               fmt::format("model.adapters=[{{name: a, path: {}}}, {{name: b, path: {}}}]",
                           adapter(first), adapter(second))});
    if (place_ == Place::plan) return;
    expect_same("a prompt that names " + first, found.at(0),
                text_with(fmt::format("[{{path: {}}}]", adapter(first))));
    expect_same("a prompt that names no adapter", found.at(1), plain());
    expect_same("a prompt that names " + second, found.at(2),
                text_with(fmt::format("[{{path: {}}}]", adapter(second))));
  };
  check("s2ft", "lora", "mix");
  check("lora", "dora", "switch");
}

}  // namespace tandem::support
