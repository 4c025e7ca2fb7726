#include <doctest/doctest.h>

#include <fmt/format.h>

#include <deque>

#include "cli/rank_runs.h"
#include "io/safetensors.h"

using namespace tandem::testing;

namespace {

/// A folder of PEFT for tiny-2m: factors of q of rank 1, and tensors that are added.
struct PeftFolder {
  TemporaryFolder folder;
  std::deque<std::vector<float>> numbers;
  std::vector<tandem::io::TensorView> tensors;

  PeftFolder() {
    for (const char* layer : {"0", "1"}) {
      const std::string q = std::string("model.layers.") + layer + ".self_attn.q_proj.";
      add(q + "lora_A.weight", {1, 192});
      add(q + "lora_B.weight", {192, 1});
    }
  }
  void add(const std::string& name, const tandem::io::Shape& shape) {
    std::vector<float>& v = numbers.emplace_back(static_cast<size_t>(shape[0] * shape[1]));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 7 % 13) / 8 - 0.75f;
    tensors.push_back(
        {"base_model.model." + name, tandem::DType::f32, shape, std::as_bytes(std::span(v))});
  }
  void add_embedding() {
    add("model.embed_tokens.lora_embedding_A", {1, 8192});
    add("model.embed_tokens.lora_embedding_B", {192, 1});
  }
  std::string path() const { return (folder / "a").string(); }
  void write(const std::string& targets, const std::string& more = "") {
    std::filesystem::create_directory(folder / "a");
    tandem::io::write_safetensors(folder / "a/adapter_model.safetensors", tensors);
    folder.write("a/adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1, )" +
                                              more + R"("target_modules": [)" + targets + "]}");
  }
};

const Words kWords = {"-p", "Number 7\n",        "-n", "12",           "-q", "--device", "cpu",
                      "-s", "model.compute=f32", "-s", "run.threads=1"};

Words merged(const PeftFolder& peft) {
  return {"-m", "tiny-2m", "-s", fmt::format("model.adapters=[{{path: {}}}]", peft.path())};
}

Outcome generate(const Words& words) {
  return run_process(program("pig-generate"), {.arguments = words + kWords});
}

Outcome adapter_tool(const PeftFolder& peft, const Words& words) {
  return run_process(
      program("s2ft-adapter"),
      {.arguments = Words{"-m", "tiny-2m", "--adapter", peft.path(), "--no-progress"} + words});
}

}  // namespace

TEST_SUITE("cli/peft_adapters") {
  TEST_CASE("embedding or head: merged as loaded, as a model folder, and on three ranks") {
    const std::string base = generate({"-m", "tiny-2m"}).out;
    const auto check = [&](PeftFolder& peft, bool unties) {
      const Outcome one = generate(merged(peft));
      CAPTURE(one.err);
      REQUIRE(one.status == 0);
      CHECK(one.out != base);
      CHECK(generate(merged(peft) + Words{"--dry-run"}).status == 0);
      const std::string model = (peft.folder / "model").string();
      const Outcome written = adapter_tool(
          peft, {"--to", "model", "-s", "output.weights=f32", "--verify", "-o", model});
      CAPTURE(written.err);
      REQUIRE(written.status == 0);
      CHECK(generate({"-m", model}).out == one.out);
      CHECK(nlohmann::json::parse(file_text(peft.folder / "model/config.json"))
                .at("tie_word_embeddings") == !unties);
      const std::vector<Outcome> ranks = run_ranks(3, merged(peft) + kWords);
      CAPTURE(ranks[0].err);
      CHECK(ranks[0].status == 0);
      CHECK(ranks[0].out == one.out);
    };
    PeftFolder embedding;
    embedding.add_embedding();
    embedding.write(R"("q_proj", "embed_tokens")");
    check(embedding, true);
    PeftFolder head;
    head.add("lm_head.lora_A.weight", {1, 192});
    head.add("lm_head.lora_B.weight", {8192, 1});
    head.write(R"("q_proj", "lm_head")");
    check(head, true);
    PeftFolder along;
    along.add("model.embed_tokens.weight", {8192, 192});
    along.write(R"("q_proj")");
    check(along, false);
  }

  TEST_CASE("what only a merged adapter can change is refused by name, with the way out") {
    PeftFolder peft;
    peft.add_embedding();
    peft.write(R"("q_proj", "embed_tokens")");
    const Outcome named =
        generate({"-m", "tiny-2m", "-s",
                  fmt::format("model.adapters=[{{name: a, path: {}}}]", peft.path())});
    CHECK(named.status == 4);
    CHECK(named.err.find("changes model.embed_tokens.weight, which only a merged adapter can do") !=
          std::string::npos);
    CHECK(named.err.find("omit the name 'a'") != std::string::npos);
    for (const char* form : {"lora", "s2ft"}) {
      const Outcome other =
          adapter_tool(peft, {"--to", form, "-o", (peft.folder / "other").string()});
      CHECK(other.status == 4);
      CHECK(other.err.find("--to model") != std::string::npos);
    }
    const Outcome summary = adapter_tool(peft, {"--format", "json"});
    CHECK(nlohmann::json::parse(summary.out)["adapters"][0]["others"] ==
          nlohmann::json::array({"model.embed_tokens.weight"}));
  }

  TEST_CASE("names that the model lacks get one warning") {
    PeftFolder peft;
    peft.write(R"("q_proj", "W_pack")");
    const Outcome ran = generate(merged(peft));
    CHECK(ran.status == 0);
    const Outcome loud = run_process(
        program("pig-generate"),
        {.arguments = merged(peft) + Words{"-p", "Once", "-n", "2", "--device", "cpu"}});
    const std::string told = "'target_modules' names 'W_pack', which this model does not have";
    CHECK(loud.err.find(told) != std::string::npos);
    CHECK(loud.err.find(told) == loud.err.rfind(told));
    CHECK(adapter_tool(peft, {}).err.find(told) != std::string::npos);
  }
}
