#include <doctest/doctest.h>

#include "io/file.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::json;

namespace {

using Ids = std::vector<int32_t>;

void write_tokenizer(const test::TemporaryFolder& folder, const json& files) {
  if (files.contains("pieces")) {
    std::vector<test::Piece> pieces;
    for (const json& piece : files["pieces"]) pieces.push_back({piece[0], piece[1], piece[2]});
    pieces.erase(pieces.begin(),
                 pieces.begin() + 3);  // <unk>, <s>, </s>: sentencepiece_model has them
    const bool prefix = files["add_dummy_prefix"];
    folder.write("tokenizer.model",
                 test::sentencepiece_model(pieces, {.add_dummy_prefix = prefix}));
  } else if (files.contains("merges")) {
    std::string merges = "#version: 0.2\n";
    for (const json& rule : files["merges"])
      merges += rule[0].get<std::string>() + " " + rule[1].get<std::string>() + "\n";
    folder.write("merges.txt", merges);
    folder.write("vocab.json", files["vocab"].dump());
  } else {
    folder.write("tokenizer.json", files.dump());
  }
}

/// A folder as scripts/golden/tokenizer_flags.py made it for transformers.
std::unique_ptr<Tokenizer> load(const json& files, const json& config,
                                const std::string& model_type) {
  const test::TemporaryFolder folder;
  write_tokenizer(folder, files);
  folder.write("tokenizer_config.json", config.dump());
  folder.write("config.json", json{{"model_type", model_type}}.dump());
  return load_tokenizer(folder.path());
}

json golden() {
  return json::parse(io::read_file(test::source_path("tests/data/golden/tokenizer_flags.json")));
}

}  // namespace

TEST_SUITE("text/tokenizer_flags") {
  TEST_CASE("every class, model type and flag: the ids of transformers 5") {
    const json data = golden();
    const auto texts = data["texts"].get<std::vector<std::string>>();
    REQUIRE(data["cases"].size() > 100);
    for (const json& c : data["cases"]) {
      const auto t =
          load(data["tokenizers"][c["tokenizer"].get<std::string>()], c["config"], c["model_type"]);
      INFO(c["tokenizer"].dump(), " ", c["model_type"].dump(), " ", c["config"].dump());
      for (size_t i = 0; i < texts.size(); ++i) {
        INFO(texts[i]);
        CHECK(t->encode(texts[i]) == c["ids"][i].get<Ids>());
      }
    }
  }
  TEST_CASE("a long text: the same ids as in parts, and counting stops in time") {
    const json data = golden();
    for (const auto& [name, class_name] : {std::pair{"sp", "LlamaTokenizer"},
                                           {"bytes", "Qwen2Tokenizer"},
                                           {"gemma", "GemmaTokenizer"}}) {
      const json config = {{"tokenizer_class", class_name}, {"add_prefix_space", true}};
      const auto t = load(data["tokenizers"][name], config, "llama");
      const Ids one = t->encode("hello", {.add_bos = false});
      for (const size_t n : {10, 50'000}) {
        std::string text;
        for (size_t i = 0; i < n; ++i) text += i > 0 ? " hello" : "hello";
        const Ids ids = t->encode(text, {.add_bos = false});
        CHECK(ids.size() == n * one.size());
        const LimitedIds part = t->encode_within(text, 5, {.add_bos = false});
        CHECK_FALSE(part.fits);
        CHECK(part.bytes <= text.size());
        CHECK(std::equal(part.ids.begin(), part.ids.end(), ids.begin()));
      }
      // A word longer than a window: no byte is counted twice.
      const std::string word(100'000, 'a');
      const Ids ids = t->encode(word, {.add_bos = false});
      CHECK(t->encode_within(word, ids.size(), {.add_bos = false}).ids == ids);
      const LimitedIds part = t->encode_within(word, ids.size() - 1, {.add_bos = false});
      CHECK_FALSE(part.fits);
      CHECK(part.at_least <= ids.size());
    }
  }

  TEST_CASE("decoding drops only the space that encoding put in front") {
    const json data = golden();
    const auto text_of = [&](const json& config, const std::string& text) {
      const auto t = load(data["tokenizers"]["sp"], config, "llama");
      return t->decode(t->encode(text));
    };
    for (const char* text : {"hello", "a b", "\nhello"}) {
      CHECK(text_of({{"tokenizer_class", "LlamaTokenizer"}}, text) == text);
      CHECK(text_of({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}}, text) ==
            text);
      CHECK(text_of({{"legacy", false}}, text) == text);
    }
    CHECK(text_of({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}}, " a") ==
          " a");
  }
}
