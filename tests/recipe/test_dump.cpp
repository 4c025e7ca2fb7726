#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "recipe_testing.h"

using namespace tandem;
using namespace tandem::recipe;

namespace {

constexpr const char* kText = R"(
model: {path: synthetic:llama-68m, compute: f32}
run: {context: 96Ki, host_limit: 16GB, device: cpu, threads: 2}
sampling: {temperature: 0.1, top_p: 0.95}
inner: {share: 30%, limit: 250ms}
stop: ["a: b", "null", "\n", "12", "é", "", "- x", "#c"]
lengths: [4Ki, 7]
)";

std::string dump(Sample& sample, const Node* tree) { return dump_yaml(fields_of(sample), tree); }

std::string hash(const std::string& text) {
  Sample sample = read(text);
  return recipe_hash(fields_of(sample));
}

}  // namespace

TEST_SUITE("recipe/dump") {
  TEST_CASE("dump, load, dump is a fixed point, with and without origins") {
    Sample first = read(kText);
    const std::string text = dump(first, nullptr);
    Sample second = read(text);
    CHECK(dump(second, nullptr) == text);
    CHECK(second.stop == first.stop);
    CHECK(to_json(fields_of(second)) == to_json(fields_of(first)));
    const Node tree = parse(kText);
    Sample third = read(dump(first, &tree));
    CHECK(dump(third, nullptr) == text);
  }

  TEST_CASE("each value names its origin") {
    Node tree = parse("model: {path: synthetic:x}\n");
    apply_setting(tree, "run.seed=4", "--set #1");
    Sample sample;
    Field fields = fields_of(sample);
    read_fields(fields, tree);
    const std::string text = dump_yaml(fields, &tree);
    CHECK(
        text.starts_with("model:\n"
                         "  path: \"synthetic:x\"  # a.yaml:1:15\n"
                         "  compute: bf16        # default\n"));
    CHECK(text.find("\n  seed: 4              # --set #1\n") != std::string::npos);
    CHECK(dump_yaml(fields, &tree, Shown::written) ==
          "model:\n"
          "  path: \"synthetic:x\"  # a.yaml:1:15\n"
          "run:\n"
          "  seed: 4              # --set #1\n");
  }

  TEST_CASE("records hold resolved numbers and nothing for what is unset") {
    Sample sample = read(kText);
    const nlohmann::json json = to_json(fields_of(sample));
    CHECK(json["run"]["context"] == 98304);
    CHECK(json["run"]["host_limit"] == 16000000000);
    CHECK_FALSE(json["run"].contains("gpu_limit"));
    CHECK(json["inner"]["share"] == 0.3);
    CHECK(json["inner"]["color"] == "red");
  }

  TEST_CASE("what comes from the environment is used, and shown as the recipe spells it") {
    setenv("TANDEM_TEST_SECRET", "/data/token-1234", 1);
    setenv("HOME", "/home/u", 1);
    const std::string recipe =
        "model: {path: '${env:TANDEM_TEST_SECRET}/m', state: ~/s.bin}\noutput: out/${env:"
        "TANDEM_TEST_SECRET}.jsonl";
    const Node tree = parse(recipe);
    Sample sample;
    Field fields = fields_of(sample);
    read_fields(fields, tree);
    CHECK(sample.model.path.value == "/data/token-1234/m");
    CHECK(sample.model.state == "/home/u/s.bin");
    const nlohmann::json json = to_json(fields);
    CHECK(json["model"]["path"] == "${env:TANDEM_TEST_SECRET}/m");
    CHECK(json["model"]["state"] == "~/s.bin");
    for (const Node* origins : {static_cast<const Node*>(nullptr), &tree}) {
      const std::string text = dump_yaml(fields, origins);
      CHECK(text.find("1234") == std::string::npos);
      CHECK(text.find("/home/u") == std::string::npos);
      Sample again;
      Field fields_again = fields_of(again);
      read_fields(fields_again, parse(text));
      CHECK(again.model.path.value == sample.model.path.value);
      CHECK(again.output == sample.output);
      CHECK(dump_yaml(fields_again, nullptr) == dump_yaml(fields, nullptr));
      CHECK(to_json(fields_again) == json);
    }
    // What decides the result is the value, whatever its spelling.
    CHECK(recipe_hash(fields) == hash("model: {path: /other/m, state: s.bin}"));
  }

  TEST_CASE("the hash sees what decides the result, and nothing else") {
    const std::string base = hash("model: {path: /a/m}");
    CHECK(base.size() == 64);
    CHECK(hash("model: {path: /b/c/m}\nrun: {threads: 9, device: cpu, plan_for: l20}\noutput: x") ==
          base);
    CHECK(hash("model: {path: /b/c/m/, compute: bf16}") == base);
    CHECK(hash("model: {path: /a/n}") != base);
    CHECK(hash("model: {path: /a/m}\nrun: {seed: 1}") != base);
  }

  TEST_CASE("SHA-256 agrees with the examples of FIPS 180-4 and around the block length") {
    CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256_hex(std::string(55, 'x')) ==
          "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
    CHECK(sha256_hex(std::string(56, 'x')) ==
          "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
    CHECK(sha256_hex(std::string(63, 'x')) ==
          "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
    CHECK(sha256_hex(std::string(64, 'x')) ==
          "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
    CHECK(sha256_hex(std::string(1000000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }

  TEST_CASE("the keys of a recipe, all or those of a section") {
    const Field schema = schema_of<Sample>();
    const auto has_key = [](const std::vector<Key>& keys, const std::string& name) {
      return std::ranges::any_of(keys, [&](const Key& key) { return key.name == name; });
    };
    const std::vector<Key> all = keys_of(schema), section = keys_of(schema, "sampling");
    CHECK(has_key(all, "model.path"));
    CHECK(has_key(all, "run.seed"));
    CHECK(has_key(section, "sampling.temperature"));
    for (const Key& key : section) CHECK(key.name.starts_with("sampling."));
    for (const Key& key : all) CHECK(find_field(schema, key.name) == key.field);
    CHECK(find_field(schema, "run.seed") != nullptr);
    CHECK(find_field(schema, "run.sed") == nullptr);
    CHECK(find_field(schema, "run.seed.x") == nullptr);
  }
}
