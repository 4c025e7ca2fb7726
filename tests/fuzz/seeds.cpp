#include "seeds.h"
#include "base/check.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "gguf_bytes.h"
#include "io/file.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/safetensors.h"
#include "kv/paged_store.h"
#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_adapter.h"
#include "sentencepiece_bytes.h"
#include "source_dir.h"
#include "speculate/tree/tree_rounds.h"
#include "state_model.h"
#include "temporary_folder.h"
#include "text/chat_template.h"

namespace tandem::fuzz {
namespace {

using io::Json;
using Seeds = std::vector<std::string>;

const std::filesystem::path kModels = test::source_dir() / "recipes/models";

/// The first tensors of a model under their own names, each extent cut to two.
Seeds safetensors() {
  const auto model = io::Safetensors::open(kModels / "tiny-2m/model.safetensors");
  const std::vector<float> zeros(4);
  std::vector<io::TensorView> tensors;
  for (const io::TensorEntry& entry : model.entries()) {
    if (tensors.size() == 6) break;
    io::TensorView view = model.tensor(entry);
    size_t n = 1;
    for (int64_t& extent : view.shape)
      n *= static_cast<size_t>(extent = std::min<int64_t>(extent, 2));
    view.dtype = tensors.size() % 2 == 0 ? DType::f32 : DType::bf16;
    view.bytes = std::as_bytes(std::span(zeros)).first(n * (view.dtype == DType::f32 ? 4 : 2));
    tensors.push_back(view);
  }
  const test::TemporaryFolder folder;
  io::write_safetensors(folder / "m", tensors, model.metadata());
  io::write_safetensors(folder / "n", std::span(tensors).first(1));
  return {io::read_file(folder / "m"), io::read_file(folder / "n")};
}

Seeds config_json() {
  const std::string file = io::read_file(kModels / "tiny-16m/config.json");
  Json other = io::parse_json(file, "config.json");
  other["architectures"] = {"Qwen2ForCausalLM"};
  for (const char* key : {"rope_theta", "rope_scaling", "torch_dtype", "head_dim"})
    other.erase(key);
  other.update({{"dtype", "float16"},
                {"use_sliding_window", true},
                {"sliding_window", 64},
                {"max_window_layers", 2},
                {"rope_parameters",
                 {{"rope_type", "llama3"},
                  {"rope_theta", 1e6},
                  {"factor", 8},
                  {"low_freq_factor", 1},
                  {"high_freq_factor", 4},
                  {"original_max_position_embeddings", 128}}}});
  return {file, other.dump(1)};
}

Seeds shard_index() {
  Json map;
  const auto model = io::Safetensors::open(kModels / "tiny-2m/model.safetensors");
  for (const io::TensorEntry& entry : model.entries()) {
    if (map.size() == 6) break;
    map[entry.name] =
        map.size() < 3 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  return {Json{{"metadata", {{"total_size", 48}}}, {"weight_map", map}}.dump(1)};
}

Seeds jsonl() {
  return {
      "{\"prompt\": \"Hello\\n\", \"id\": 1}\n\n{\"prompt_ids\": [0, 17, -2.5e3], \"x\": null}\n",
      "[1, [2, {\"a\": true}], \"\\u00e9\\ud83d\\ude00\"]\r\n\"\"\n"};
}

Seeds acceptance() {
  return {
      R"({"format": "acceptance-vector/1", "method": "sequoia", "p": [0.6, 0.25, 0]})",
      R"({"format": "acceptance-vector/1", "method": "topk-greedy", "rows": [[0.5, 0.1], [0.25]]})"};
}

Seeds timing() {
  return {
      R"({"format": "sequoia-timing/1", "overhead_ms": 0.5, "buckets": [{"context": 64, "target":)"
      R"( {"tokens": [1, 8], "ms": [5, 6.5]}, "draft": {"tokens": [1], "ms": [0.25]}}]})"};
}

Seeds thresholds() {
  return {
      R"({"format": "ffn-thresholds/1", "model": "tiny-2m", "fingerprint": "ab12", "keep": 0.5,)"
      R"( "thresholds": [0.125, 0, 3e-2]})"};
}

Seeds ranks() {
  return {
      R"({"rank": 1, "size": 2, "process": 7, "host": "a", "ring": {"host": "10.0.0.2", "port": 4000},)"
      R"( "facts": {"a": "2"}})",
      R"({"run": "ab", "rings": [{"host": "a", "port": 1}, {"host": "::1", "port": 2}], "hosts": ["a", "b"]})",
      R"({"kind": 3, "where": "file", "message": "is not there", "hint": "make one"})"};
}

Seeds tree_file() {
  return {
      R"({"format": "sequoia-tree/1", "size": 4, "levels": 3, "widths": [1, 2, 1], "branch_counts":)"
      R"( [2, 1, 0, 0], "parents": [-1, 0, 0, 1], "child_positions": [0, 1, 2, 1], "expected_tokens": 2.2,)"
      R"( "algorithm": "dp", "vector": {"file": "a.json", "method": "sequoia", "sha256": "ab"}, "cost":)"
      R"( {"t_ms": 9, "draft_ms_per_level": [1, 2], "overhead_ms": 0, "x_ms_per_token": 5.5}})",
      R"({"roots": [[0], [1]], "branches": [[1], [0]], "Successors": [[1], []], "mask": [[1, 0], [1, 1]],)"
      R"( "depth": [0, 1], "size": 2})"};
}

Seeds prompts() {
  return {"[1, 2, 7]", "{\"ids\": [1, 2]}\n\n{\"ids\": [7]}\n",
          "{\"prompt\": \"The lamp was lit.\"}\n",
          "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
          " {\"role\": \"user\", \"content\": \"Hi\"},"
          " {\"role\": \"assistant\", \"content\": \"Yes?\"},"
          " {\"role\": \"user\", \"content\": \"Bye\"}]}\n"};
}

Seeds train_data() {
  return {R"([{"instruction": "Say a", "input": "", "output": "a", "answer": "a"},)"
          R"( {"prompt": "Add", "input": "1 2", "output": "\nA: 3"}])",
          "{\"question\": \"Who?\", \"answer\": \"I.\\n#### 1\"}\n\n{\"text\": \"one two\"}\n",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"},"
          " {\"role\": \"assistant\", \"content\": \"Yes?\"}]}\n",
          "{\"ids\": [0, 5, 9, 7], \"supervised\": [[1, 2], [3, 4]]}\n{\"ids\": [1, 2]}\n",
          "The lamp was lit at dusk,\nand the wind was west.\n"};
}

Seeds answer_set() {
  return {R"([{"instruction": "Is it?", "input": "", "output": "it is", "answer": "True"},)"
          R"( {"instruction": "And this?", "input": "This.", "answer": "false"}])",
          R"([{"instruction": "1 - 3?", "answer": "-2.0"}, {"instruction": "1 + 1", "answer": 2}])",
          R"([{"instruction": "Which? (A) $1,234.50 (B) -7 or answer3, option1", "answer": "B"}])"};
}

Seeds train_template() {
  return {"### Instruction:\n{instruction}\n\n### Input:\n{input}\n### Response:\n",
          "{{eos}} {A} {instruction} {", "{\"q\": \"{instruction}\"}"};
}

Seeds recipe_yaml() {
  return {
      "kind: pig-generate\nversion: 1\n# comment\nmodel: {path: recipes/models/tiny-16m}\n"
      "run:\n  context: 16Ki\n  seed: 7\nsampling:\n  temperature: 0.6\n  stop: ['a', \"b\\n\"]\n",
      "sweep:\n  - cache.kind: [full, streaming]\n  - run.batch: [1, 2]\ntext: |\n  two\n  "
      "lines\n"};
}

/// The embedded tokenizer with a vocabulary of its first tokens, and the merges among these.
Json small_tokenizer() {
  constexpr int kTokens = 320;
  Json j = io::parse_json(io::read_file(kModels / "tiny-2m/tokenizer.json"), "tokenizer.json");
  Json vocab = Json::object(), merges = Json::array();
  for (const auto& [piece, id] : j["model"]["vocab"].items())
    if (id < kTokens) vocab[piece] = id;
  for (const Json& rule : j["model"]["merges"]) {
    const auto text = rule.is_string()
                          ? rule.get<std::string>()
                          : rule[0].get<std::string>() + " " + rule[1].get<std::string>();
    const size_t space = text.find(' ');
    const std::string left = text.substr(0, space), right = text.substr(space + 1);
    if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right))
      merges.push_back(rule);
  }
  j["model"]["vocab"] = vocab;
  j["model"]["merges"] = merges;
  return j;
}

Seeds tokenizer_json() { return {small_tokenizer().dump(), small_tokenizer().dump(1)}; }

/// vocab.json, a zero byte, merges.txt.
Seeds vocab_merges() {
  const Json model = small_tokenizer()["model"];
  Json vocab = model["vocab"];
  vocab["<|endoftext|>"] = vocab.size();
  std::string merges = "#version: 0.2\n";
  for (const Json& rule : model["merges"])
    merges += (rule.is_string() ? rule.get<std::string>()
                                : rule[0].get<std::string>() + " " + rule[1].get<std::string>()) +
              "\n";
  return {vocab.dump() + '\0' + merges};
}

/// BPE with byte fallback; unigram and characters with a character map and user-defined symbols.
Seeds sentencepiece() {
  using namespace test;
  constexpr int kNormal = 1, kUserDefined = 4, kUnused = 5, kByte = 6;
  std::vector<Piece> pieces = {{"\u2581", -3, kNormal},    {"l", -5, kNormal},
                               {"o", -4, kNormal},         {"lo", -2, kNormal},
                               {"llo", -1, kUnused},       {"\u2581wo", -7, kNormal},
                               {"he", -1.5f, kUserDefined}};
  const ModelSettings mapped = {
      .byte_fallback = false,
      .charsmap = charsmap({{"H", "h"}, {"\u00e9", "e\u0301"}, {"\n", " "}, {"1", "one"}})};
  Seeds seeds;
  for (const int model_type : {1, 2, 4}) {
    ModelSettings settings = mapped;
    settings.model_type = model_type;
    seeds.push_back(sentencepiece_model(pieces, settings));
  }
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, kByte});
  seeds.push_back(sentencepiece_model(pieces));
  return seeds;
}

Seeds tokenizer_config() { return {io::read_file(kModels / "tiny-2m/tokenizer_config.json")}; }

Seeds chat_template() {
  Seeds seeds;
  const auto read = [](const char* name) {
    return io::parse_json(io::read_file(test::source_dir() / "tests/data/golden/chat" / name),
                          name);
  };
  const io::Json chats = read("chat_templates.json"), rules = read("jinja.json");
  // As the target has it.
  const text::Chat chat = {
      {"user", "Hi"}, {"assistant", "Yes?"}, {"user", "Bye"}, {"assistant", "No"}};
  const auto add = [&](const std::string& jinja) {
    try {
      text::ChatTemplate(jinja, "seed", {}, {{"bos_token", "<s>"}}, {"</s>"}).sample(chat, "seed");
      seeds.push_back(jinja);
    } catch (const Error&) {  // it needs other variables, or shows what is refused
    }
  };
  for (const io::Json& t : chats["templates"]) add(t["template"]);
  for (const io::Json& c : rules["cases"]) add(c["template"]);
  TANDEM_CHECK(seeds.size() > 300, "only {} templates write a chat", seeds.size());
  return seeds;
}

/// A prefill of three tokens, as save_state writes it.
Seeds state() {
  const decode::ModelFiles& files = state_model();
  const std::vector<int32_t> tokens = {1, 2, 3};
  const io::Shape shape{files.config.n_kv_heads, kPageTokens, files.config.head_dim};
  const std::vector<float> page(static_cast<size_t>(shape[0] * shape[1] * shape[2]));
  const std::vector<io::TensorView> tensors = {
      {"tokens", DType::i32, {3}, std::as_bytes(std::span(tokens))},
      {"k.0.0", DType::f32, shape, std::as_bytes(std::span(page))},
      {"v.0.0", DType::f32, shape, std::as_bytes(std::span(page))}};
  const test::TemporaryFolder folder;
  io::write_safetensors(folder / "s", tensors,
                        {{"format", "tandem.state/1"},
                         {"model", files.name},
                         {"fingerprint", files.fingerprint},
                         {"compute", "f32"},
                         {"policy", "full"}});
  return {io::read_file(folder / "s")};
}

/// An adapter of PEFT, as fuzz_adapter reads it: factors of q, with magnitudes or not.
std::string low_rank_adapter(bool dora) {
  const std::vector<float> values = {0.5f, -1, 2, 0.25f};
  const model::LowRankDelta delta{.id = {model::Role::q},
                                  .rank = 2,
                                  .a = values,
                                  .b = values,
                                  .magnitude = std::span(values).first(dora ? 2 : 0)};
  const test::TemporaryFolder folder;
  model::write_low_rank_adapter(
      folder.path(),
      {.base = "base", .rank = 2, .alpha = 4, .dora = dora, .targets = {model::Role::q}},
      {&delta, 1});
  return io::read_file(folder / "adapter_config.json") + std::string(1, '\0') +
         io::read_file(folder / "adapter_model.safetensors");
}

/// The same of q and down by their paths, each of another rank.
std::string low_rank_patterns() {
  const std::vector<float> values = {0.5f, -1, 2, 0.25f};
  const std::span<const float> half = std::span(values).first(2);
  const std::vector<model::LowRankDelta> deltas = {
      {.id = {model::Role::q}, .rank = 2, .a = values, .b = values},
      {.id = {model::Role::down}, .rank = 1, .a = half, .b = half}};
  const test::TemporaryFolder folder;
  model::write_low_rank_adapter(folder.path(), {.base = "base", .rank = 2, .alpha = 2}, deltas);
  return io::read_file(folder / "adapter_config.json") + std::string(1, '\0') +
         io::read_file(folder / "adapter_model.safetensors");
}

/// Factors of the embedding, a saved norm, and trained tokens of the head.
std::string low_rank_others() {
  const std::vector<float> values(16, 0.5f);
  const std::string model = "base_model.model.model.";
  const auto tensor = [&](const std::string& name, const io::Shape& shape, size_t n) {
    return io::TensorView{name, DType::f32, shape, std::as_bytes(std::span(values).first(n))};
  };
  const std::vector<io::TensorView> tensors = {
      tensor(model + "embed_tokens.lora_embedding_A", {2, 8}, 16),
      tensor(model + "embed_tokens.lora_embedding_B", {2, 2}, 4),
      tensor(model + "norm.weight", {2}, 2),
      tensor("base_model.model.lm_head.token_adapter.trainable_tokens_delta", {2, 2}, 4)};
  const std::vector<std::byte> bytes = io::safetensors_bytes(tensors);
  return R"({"peft_type":"LORA","r":2,"target_modules":["embed_tokens"],)"
         R"("modules_to_save":["model.norm"],"trainable_token_indices":{"lm_head":[1,6]}})" +
         std::string(1, '\0') +
         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Rows of q and columns of w_down, in f32, as write_adapter writes them.
Seeds adapter() {
  const decode::ModelFiles& files = state_model();
  const std::vector<float> values = {0.5f, -1, 2, 0.25f};
  const std::vector<model::AdapterSlice> slices = {
      {{model::Role::q}, {0, 1}, values}, {{model::Role::down}, {1}, std::span(values).first(2)}};
  const test::TemporaryFolder folder;
  model::write_adapter(
      folder.path(),
      {.base = {files.name, files.fingerprint}, .selection = R"({"strategy":"random"})"}, slices);
  return {io::read_file(folder / "s2ft_adapter.safetensors"), low_rank_adapter(false),
          low_rank_adapter(true), low_rank_patterns(), low_rank_others()};
}

/// Two rounds of three nodes, as sequoia-acceptance records them.
Seeds tree_rounds() {
  speculate::RecordedRun run{.target = "big",
                             .draft = "small",
                             .target_fingerprint = "a1",
                             .draft_fingerprint = "b2",
                             .verify = "sequoia",
                             .sampling = {},
                             .seed = 0};
  speculate::TreeRounds rounds =
      speculate::empty_rounds(speculate::tree_of_children(std::vector{1, 1, 0}, "seed"), run);
  const std::vector<NodeChances> chances = {{1, 1, 1, 1}, {.8, .5, .8, .4}, {.25, .5, .25, .1}};
  for (const int32_t text : {0, 1}) rounds.add(text, chances);
  const test::TemporaryFolder folder;
  speculate::write_tree_rounds(folder / "r", rounds);
  return {io::read_file(folder / "r")};
}

const std::map<std::string, Seeds (*)(), std::less<>> kTargets = {
    {"safetensors", safetensors},
    {"adapter", adapter},
    {"config_json", config_json},
    {"gguf", [] { return Seeds{test::tiny_gguf().bytes()}; }},
    {"shard_index", shard_index},
    {"jsonl", jsonl},
    {"ranks", ranks},
    {"recipe_yaml", recipe_yaml},
    {"state", state},
    {"tokenizer_json", tokenizer_json},
    {"vocab_merges", vocab_merges},
    {"tokenizer_config", tokenizer_config},
    {"chat_template", chat_template},
    {"prompts", prompts},
    {"answer_set", answer_set},
    {"train_data", train_data},
    {"train_template", train_template},
    {"sentencepiece", sentencepiece},
    {"acceptance", acceptance},
    {"thresholds", thresholds},
    {"timing", timing},
    {"tree_file", tree_file},
    {"tree_rounds", tree_rounds},
};

}  // namespace

std::vector<std::string> seeds(std::string_view target) {
  const auto it = kTargets.find(target);
  if (it == kTargets.end()) throw std::invalid_argument("no such target: " + std::string(target));
  return it->second();
}

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kTargets) names.push_back(name);
  return names;
}

}  // namespace tandem::fuzz
